"""The figure of adaptive verification against the best fixed K over the load."""

import json

import pytest
from plain_scenario import plain_scenario

import forerun as fr
from dashboards.app.pages.speculation import _adaptive, has_confidence
from dashboards.figures.speculation import adaptive_data
from simulator.speculation.confidence import SEEN_CLASSES
from simulator.studies.compare.command import compare

CHAIN = {"method": "eagle3", "num_speculative_tokens": 4, "acceptance": {"alpha": 0.7}}


@pytest.fixture(scope="module")
def comparison():
    vary = {
        "speculation.policy": ["fixed", "confidence-budget"],
        "workload.arrivals.max_concurrency": [2, 64],
    }
    scenario = plain_scenario(
        inputs=64,
        outputs=60,
        requests=96,
        speculation=CHAIN,
        workload={"arrivals": {"process": "closed-loop", "max_concurrency": 2}},
    )
    return compare(scenario, vary=vary)


def test_both_lines_are_the_throughput_of_their_variants(comparison):
    data = adaptive_data(comparison.document)
    assert (data.axis, data.loads) == ("workload.arrivals.max_concurrency", (2, 64))
    rates = [variant["summary"]["output_throughput"] for variant in comparison.document["variants"]]
    assert sorted((*data.fixed, *data.adaptive)) == sorted(rates)
    assert data.fixed == tuple(rates[:2]), "the first variants are those of fixed K"
    figure = fr.plot.adaptive(comparison)
    lines = [line for line in figure.data if line.fill is None]
    assert [line.name for line in lines] == ["best fixed K", "adaptive verification"]
    assert list(lines[1].y) == list(data.adaptive)


def test_each_line_lies_in_a_fan_of_its_variants_intervals(comparison):
    fans = [band for band in fr.plot.adaptive(comparison).data if band.fill == "toself"]
    assert [band.showlegend for band in fans] == [True, False, False, False], "named once"
    for first, fan in ((0, fans[:2]), (2, fans[2:])):
        low, high = (
            comparison.document["variants"][first][name]["output_throughput"] for name in ("intervals", "likely")
        )
        for band, ends in zip(fan, (low, high), strict=True):
            assert {band.y[0], band.y[-1]} == set(ends)


def test_a_comparison_of_policies_at_one_load_has_no_such_figure(comparison):
    alone = {**comparison.document, "variants": comparison.document["variants"][:1]}
    assert adaptive_data(alone) is None
    assert adaptive_data({**alone, "variants": [{"set": {"speculation.policy": "fixed"}, "summary": {}}]}) is None


def test_the_speculation_page_draws_it_for_a_better_or_worse_confidence_head():
    chip = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}}
    method = {"method": "parallel-draft", "acceptance": {"alpha": 0.6}}
    known = {head: _adaptive(json.dumps(chip | {"speculation": method}), head, 64, 40) for head in SEEN_CLASSES}
    assert len({data.fixed for data in known.values()}) == 1, "the best fixed K knows no confidence"
    gains = [data.adaptive[-1] / data.fixed[-1] for data in (known["constant"], known["calibrated"], known["perfect"])]
    assert gains == sorted(gains)
    assert gains[2] > 1.05 * gains[0], gains
    assert [has_confidence(method) for method in ("ngram", "suffix", "eagle3", "mtp")] == [False, False, True, True]
