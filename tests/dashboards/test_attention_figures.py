"""Figures of attention-level speculation: they show what the models say, and the page holds them all."""

import json

import numpy as np
import pytest

from alspec_report import Finding, LeverData, RateData, attention_report_html, lever_figure, rate_figure
from dashboards.figures import attention
from dashboards.figures.attention import GainData
from simulator.speculation.attention_level import compare_layouts, consistency_set, pass_seconds
from simulator.speculation.attention_level.consistency import group_layer
from simulator.studies.alspec import Gain

SET = consistency_set("n150-llama-3.1-8b")
TIMES = group_layer(SET, 131072, SET.values())


@pytest.mark.parametrize("reading", ["next-attention", "same-layer", "pipelined"])
def test_gantt_shows_every_bar_of_a_hit_and_of_a_miss(reading):
    data = attention.gantt_data(TIMES, reading, "a basis")
    assert data.hit.seconds == pytest.approx(pass_seconds(TIMES, [True, True], reading))
    assert data.miss.seconds == pytest.approx(pass_seconds(TIMES, [False, True], reading))
    figure = attention.gantt_figure(data)
    assert sum(len(trace.x) for trace in figure.data) == len(data.hit.bars) + len(data.miss.bars)
    assert {trace.name for trace in figure.data} <= set(attention.WORK_COLOURS)
    for trace in figure.data:
        for width, start in zip(trace.x, trace.base, strict=True):
            assert 0 < width <= max(data.hit.seconds, data.miss.seconds) * 1e6 - start + 1e-6
    shapes = [shape for trace in figure.data for shape in trace.marker.pattern.shape]
    assert shapes.count("/") == sum(not bar.kept for bar in (*data.hit.bars, *data.miss.bars))
    assert all(bar.kept for bar in data.hit.bars)
    assert "basis: a basis" in figure.layout.title.text


def test_speedup_lines_are_the_closed_form_inside_their_band():
    data = attention.context_gain_data(SET, points=9)
    for rate, row in zip(data.hit_rates, data.speedup, strict=True):
        np.testing.assert_allclose(row, [compare_layouts(SET, c, rate).speedup for c in data.contexts])
    assert (data.low <= data.speedup[-1]).all()
    assert (data.speedup[-1] <= data.high).all()
    figure = attention.context_gain_figure(data)
    assert len(figure.data) == 6
    assert "consistency, not validation" in figure.layout.title.text
    assert "pays from 19.4K at 87.5% (17.3K to 113K)" in figure.layout.title.text


def test_sensitivity_shows_every_case_and_its_range():
    data = attention.sensitivity_data(SET, 131072, 0.875)
    figure = attention.sensitivity_figure(data)
    assert max(len(case.name) for case in data.cases) <= 42, "a name stands in the figure on a phone without being cut"
    assert "1.02x to 1.61x" in figure.layout.title.text
    assert len(figure.data[0].x) == len(SET.cases)
    ends = np.array(figure.data[0].base) + np.array(figure.data[0].x)
    np.testing.assert_allclose(ends, [case.speedup for case in data.cases])


def test_gains_write_where_they_begin():
    rows = tuple(Gain(1, 1 << n, gain, gain, gain, True) for n, gain in ((13, 0.9), (15, 1.1), (17, 1.3)))
    figure = attention.gain_figure(GainData("title", "model", rows, "extrapolated"))
    assert [note.text for note in figure.layout.annotations] == ["pays from 32K", "<b>1.30x at 128K</b>"]
    assert "hollow" not in figure.layout.title.text


def test_gains_mark_what_does_not_fit():
    rows = (Gain(1, 131072, 1.1, 1.0, 1.2, True), Gain(1, 1 << 20, 1.2, 1.1, 1.4, False))
    figure = attention.gain_figure(GainData("title", "model", rows, "extrapolated"))
    assert list(figure.data[0].marker.symbol) == ["circle", "circle-open"]
    np.testing.assert_allclose(figure.data[0].error_y.array, [0.1, 0.2])
    np.testing.assert_allclose(figure.data[0].error_y.arrayminus, [0.1, 0.1])


def test_rates_show_their_data():
    rates = np.array([[1.0, 2.0], [3.0, 4.0]])
    figure = rate_figure(RateData("title", (8192, 131072), ("one", "two"), rates, "extrapolated"))
    assert [list(trace.y) for trace in figure.data] == rates.tolist()
    assert list(figure.data[0].x) == ["8K", "128K"]


def test_levers_show_speed_against_error_with_both_foils():
    gain, error = np.array([[1.2, 1.5], [1.3, 1.6]]), np.array([[0.01, 0.05], [0.01, 0.03]])
    data = LeverData("somewhere", (128, 512), (0.05, 0.2), gain, error, np.array([2.0, 1.9]), np.array([0.07, 0.04]))
    figure = lever_figure(data)
    assert [list(trace.x) for trace in figure.data[:2]] == error.tolist()
    assert [list(trace.y) for trace in figure.data[:2]] == gain.tolist()
    assert [trace.name for trace in figure.data[2:]] == ["never checked", "exact attention"]
    assert list(figure.data[2].x) == [0.07, 0.04]
    assert (figure.data[3].x[0], figure.data[3].y[0]) == (0.0, 1.0)


def test_tokens_and_ticks_are_powers_of_two():
    assert [attention.token_grid(count) for count in (None, 512, 1024, 19660, 1 << 20)] == [
        "never",
        "512",
        "1K",
        "19.2K",
        "1M",
    ]
    assert attention.context_axis(1024, 131072)["ticktext"] == ["1K", "2K", "4K", "8K", "16K", "32K", "64K", "128K"]


def test_the_page_holds_figures_sentences_and_sources():
    findings = {
        "one": Finding(attention.sensitivity_figure(attention.sensitivity_data(SET, 131072, 0.875)), "A < sentence.")
    }
    html = attention_report_html("Title", "Lead.", findings, {"sync_s": "25 us"})
    assert "A &lt; sentence." in html
    assert '<div class="figure" id="one"' in html
    figures = html.split('id="figures">')[1].split("</script>")[0]
    assert list(json.loads(figures)) == ["one"]
