"""Figures: the data is right, the renderer shows all of it, big runs stay small."""

import json

import numpy as np
import pytest

from dashboards.figures import run as of_run
from dashboards.figures.run import Spans
from dashboards.theme import COLOURS, dark_template, light_template


def titles(figure):
    axes = [figure.layout[name] for name in figure.layout if name.startswith(("xaxis", "yaxis"))]
    return [axis.title.text for axis in axes if axis.title.text]


def test_every_figure_names_its_basis_and_its_units(run):
    for figure in (
        of_run.latency_figure(of_run.latency_data(run)),
        of_run.timeline_figure(of_run.timeline_data(run)),
        of_run.waterfall_figure(of_run.waterfall_data(run)),
        of_run.bottleneck_figure(of_run.bottleneck_data(run)),
    ):
        assert "basis: datasheet" in figure.layout.title.text
        assert titles(figure)
        json.loads(figure.to_json())


def test_latency_curves_are_distributions_with_slo_marks(run):
    data = of_run.latency_data(run)
    assert [curve.name for curve in data.curves] == ["ttft", "tpot", "e2el"]
    assert data.requests == 239
    for curve in data.curves:
        assert np.all(np.diff(curve.ms) >= 0)
        assert np.all(np.diff(curve.share) > 0)
        assert curve.share[-1] == 1.0
    assert data.curves[0].limits == ((500.0, 0.99),)
    assert len(of_run.latency_figure(data).data) == 5


def test_a_thinned_distribution_keeps_shape_ends_and_tail():
    values = np.sort(np.random.default_rng(1).lognormal(size=200_000))
    ms, share = of_run.thinned_distribution(values, points=400)
    assert len(ms) <= 460
    assert (ms[0], ms[-1], share[-1]) == (values[0], values[-1], 1.0)
    for percent in (10, 50, 90, 99):
        assert np.interp(percent / 100, share, ms) == pytest.approx(np.percentile(values, percent), rel=0.02)


def test_limits_are_read_from_slo_keys():
    slo = {"p99.9_ttft_ms": 7, "median_ttft_ms": 3.0, "mean_ttft_ms": 1, "p99_tpot_ms": 5}
    assert of_run.percentile_limits(slo, "ttft") == ((7.0, pytest.approx(0.999)), (3.0, 0.5))


def test_time_mean_is_exact_on_a_worked_example():
    replica = np.array([0.0, 0.0, 1.0])
    start, end = np.array([0.0, 2.0, 0.0]), np.array([1.0, 4.0, 4.0])
    mean = Spans(replica, start, end, np.array([0.0, 2.0, 3.0, 4.0])).mean(np.array([10.0, 20.0, 1.0]))
    assert mean == pytest.approx([5.0 + 1.0, 20.0 + 1.0, 20.0 + 1.0])


def test_time_mean_counts_overlapping_steps_once():
    start, end = np.array([0.0, 1.0]), np.array([2.0, 3.0])
    assert Spans(np.zeros(2), start, end, np.array([0.0, 3.0])).mean(np.ones(2)) == pytest.approx([1.0])


def test_timeline_keeps_tokens_and_stays_small(run):
    data = of_run.timeline_data(run, bins=50)
    assert len(data.time_s) == 50
    total = (data.output_tokens_per_s * data.bin_s).sum()
    assert total == pytest.approx(run.steps["output_tokens"].sum(), rel=1e-9)
    assert data.kv_use is not None
    assert 0.0 <= data.kv_use.min() <= data.kv_use.max() <= 1.0
    assert data.waiting.max() > 0.0


def test_waterfall_samples_the_whole_run_and_skips_failures(run):
    data = of_run.waterfall_data(run, most=20)
    assert len(data.row) == 20
    assert (data.row[0], data.row[-1], data.completed) == (0, 239, 239)
    assert 5 not in of_run.waterfall_data(run, most=10_000).row
    assert np.all(data.finished_s >= data.first_token_s)


def test_bottleneck_bars_fill_the_whole(run):
    figure = of_run.bottleneck_figure(of_run.bottleneck_data(run))
    assert sum(bar.x[0] for bar in figure.data) == pytest.approx(100.0)
    assert [bar.name for bar in figure.data] == ["compute", "memory", "interconnect", "latency", "host", "idle"]


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_ink_and_lines_can_be_read_on_both_backgrounds():
    for template in (light_template(), dark_template()):
        paper = template.layout.paper_bgcolor
        assert contrast(template.layout.font.color, paper) >= 7.0
        assert contrast(template.layout.xaxis.title.font.color, paper) >= 4.5
        lighter = template.layout.meta or {}
        for name in ("ttft", "tpot", "e2el", "running", "waiting", "kv"):
            shown = lighter.get(COLOURS[name], COLOURS[name])
            assert contrast(shown, paper) >= (3.0 if shown == COLOURS[name] else 4.5), name
