"""Figures and reports of studies from documents alone."""

import sys

import pytest
from plain_scenario import plain_scenario

import forerun as fr
from dashboards.figures import studies
from dashboards.study_report import figure_data, study_html, study_markdown
from dashboards.theme import range_with_intervals, text_intervals
from simulator.studies.compare.document import CompareResult
from simulator.studies.sweep.study import SweepResult

SCENARIO = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}}


def test_forest_shows_what_was_measured_with_its_intervals(comparison):
    data = studies.forest_data(comparison)
    assert [(row.variant, row.metric, row.ratio) for row in data.rows] == [
        ("b", "mean_e2el_ms", 1.2),
        ("b", "output_throughput", 0.9),
        ("c", "output_throughput", 1.05),
    ]
    figure = studies.forest_figure(data)
    assert list(figure.data[0].error_x.array) == pytest.approx([0.1, 0.0])
    assert list(figure.data[0].x) == [1.2, 0.9]


def test_tornado_is_widest_first_and_leaves_out_what_does_nothing(comparison):
    data = studies.tornado_data(comparison)
    assert data.variant == "b"
    assert [row.parameter for row in data.rows] == [
        "acceptance rates, 500 ms .. 2 s",
        "host time of a step, x0.5 .. x2",
    ]
    assert data.rows[0].flips
    low, high = studies.tornado_figure(data).data
    for index, row in enumerate(data.rows):
        assert low.base + low.x[index] == pytest.approx(row.at_low)
        assert high.base + high.x[index] == pytest.approx(row.at_high)


def test_a_swing_too_small_to_see_is_no_bar(comparison):
    rows = [
        row | {"ratios": {name: {"at_low": 1.232, "at_high": 1.233} for name in row["ratios"]}}
        for row in comparison["sensitivity"]
    ]
    assert studies.tornado_data(comparison | {"sensitivity": rows}) is None


def test_a_load_axis_over_decades_names_few_of_its_ticks(comparison):
    data = studies.load_curve_data(comparison)
    (curve,) = data.curves[:1]
    loads = tuple(0.5 * 2**step for step in range(len(curve.loads)))
    assert studies.load_curve_figure(data._replace(curves=(curve._replace(loads=loads),))).layout.xaxis.dtick is None
    loads = tuple(0.5 * 100**step for step in range(len(curve.loads)))
    assert studies.load_curve_figure(data._replace(curves=(curve._replace(loads=loads),))).layout.xaxis.dtick == "D2"


def test_load_curve_marks_the_crossing(comparison):
    data = studies.load_curve_data(comparison)
    assert data.crossings == (2.4,)
    figure = studies.load_curve_figure(data)
    assert figure.layout.annotations[0].text == "2.4 req/s"
    assert 10 ** figure.layout.annotations[0].x == pytest.approx(2.4)
    assert studies.load_curve_data(comparison | {"load_curves": None, "crossover": None}) is None


def test_loads_end_at_capacity(comparison):
    """Loads that nobody can serve are not drawn, where two others are left and no crossing lies beyond."""
    everything = studies.load_curve_data(comparison)
    loads = everything.curves[0].loads
    assert len(loads) > 2
    assert everything.capacity is None
    served = {"path": everything.path, "requested": 1.0, comparison["baseline"]: 0.1, "b": loads[-2]}
    data = studies.load_curve_data(comparison | {"served_load": served, "crossover": None})
    assert (data.capacity, data.curves[0].loads) == (loads[-2], loads[:-1])
    figure = studies.load_curve_figure(data)
    assert 10 ** figure.layout.xaxis.range[1] == pytest.approx(loads[-2])
    assert figure.layout.annotations[-1].text.startswith("capacity ")
    few = studies.load_curve_data(comparison | {"served_load": served | {"b": loads[0]}, "crossover": None})
    assert (few.capacity, few.curves[0].loads) == (None, loads)


def test_one_wide_interval_does_not_stretch_an_axis():
    rows = [(0.9, 1.0, 1.1), (1.1, 1.2, 1.3), (1.392, 1.5, 5416.9)]
    first, last = range_with_intervals(rows)
    assert 0.5 < first < 0.9
    assert 1.5 < last < 3.0
    assert range_with_intervals(rows[:2]) is None
    assert range_with_intervals([(0.1, 1.0, 10.0)], logarithmic=True) is None
    assert range_with_intervals([]) is None


def test_launch_commands_follow_the_answer():
    plan = fr.plan(
        plain_scenario(requests=60), rate=2.0, slo={"p99_ttft_ms": 2000}, vary={"hardware.tensor_parallel": [1, 2]}
    )
    page = study_html(plan)
    commands = page.index("Launch commands")
    assert page.index("What would change it") < commands < page.index("Run it again")
    shown, folded = page[commands:].split("<details>", 1)
    assert shown.count("vllm serve") == 1
    assert "vllm serve" in folded.split("</details>")[0]


def test_a_heading_of_a_report_stays_one_heading(comparison):
    scenario = comparison["scenario"] | {"model": "llama\n# <b>mine</b>"}
    text = study_markdown(CompareResult(comparison | {"scenario": scenario}, "forerun compare study.yaml"))
    assert text.splitlines()[0].startswith("# llama \\# &lt;b>mine")


def test_report_holds_all_that_a_reviewer_needs(comparison):
    result = CompareResult(comparison, "forerun compare study.yaml --seed 3")
    page, text = study_html(result), study_markdown(result)
    for needle in ("forerun compare study.yaml --seed 3", "9.9", "llama-3.1-8b", "a remark", "calibrated", "seed 3"):
        assert needle in page
        assert needle in text
    assert "b wins | by &lt;a lot&gt;" in page
    assert "<a lot>" not in page
    assert "| 1.200 1.100..1.300 |" in text
    assert list(figure_data(result)) == ["speedup", "load", "tornado"]


def test_text_figure_puts_values_where_they_belong():
    lines = text_intervals([("low", 0.0, 0.0, 0.5), ("high", None, 1.0, None)], 0.5).splitlines()
    axes = [line[6:62] for line in lines]
    assert axes[0][0] == "o"
    assert axes[0][1] == "-"
    assert axes[1][55] == "o"
    assert axes[1][28] == "|"


def test_sweep_ranks_fields_by_what_they_explain():
    points = [
        {
            "name": f"{chip} {seqs}",
            "set": {"engine.max_num_seqs": seqs, "hardware.chip": chip},
            "status": "done",
            "summary": {"mean_e2el_ms": base + seqs},
            **dict.fromkeys(("intervals", "slo", "energy_joules", "cost_usd", "usd_per_million_output_tokens")),
            "basis": "calibrated",
            "bottleneck": {},
            "chips": 1,
        }
        for chip, base in (("h100-sxm", 10.0), ("n150", 100.0))
        for seqs in (1, 2)
    ]
    points.append({"name": "x", "set": {"hardware.chip": "h10"}, "status": "failed", "error": "no such chip"})
    document = {
        "points": points,
        "counts": {"done": 4, "failed": 1},
        "design": "grid",
        "scenario": SCENARIO,
        "seed": 0,
        "replications": 1,
        "version": "9.9",
        "basis": "calibrated",
        "notes": [],
        "metric": "mean_e2el_ms",
        "conclusion": "best",
    }
    data = studies.sweep_data(document)
    assert [panel.path for panel in data.panels] == ["hardware.chip", "engine.max_num_seqs"]
    assert data.best == 0
    assert [[name for name, _ in panel.lines] for panel in data.panels] == [
        ["max_num_seqs=1", "max_num_seqs=2"],
        ["chip=h100-sxm", "chip=n150"],
    ]
    lines = [trace for trace in studies.sweep_figure(data).data if trace.mode == "lines" and trace.fill is None]
    assert [list(line.y) for line in lines] == [[11.0, 101.0], [12.0, 102.0], [11.0, 12.0], [101.0, 102.0]]
    importance = studies.importance_data(document)
    assert [name for name, *_ in importance.bars] == ["chip", "max num seqs"]
    assert sum(share for _, share, _ in importance.bars) == pytest.approx(100.0)
    assert studies.importance_data(document | {"points": points[:2]}) is None
    pools = [
        {"set": {f"pools.{role}.hardware.replicas": count, **extra}, "load_points": [
            {"meets_slo": True, "usd_per_million_output_tokens": cost}
        ]}
        for role, count, cost, extra in (("prefill", 1, 1.0, {}), ("prefill", 2, 2.0, {}), ("decode", 1, 1.5, {}),
                                         ("decode", 2, 3.0, {"pools": None}))
    ]  # fmt: skip
    bars = studies.importance_data({"candidates": pools, "basis": "calibrated"}).bars
    assert {name for name, *_ in bars} == {f"pools.{role}.hardware.replicas" for role in ("prefill", "decode")}
    text = study_markdown(SweepResult(document, "forerun sweep study.yaml"))
    assert text.index("h100-sxm 1") < text.index("n150 2") < text.index("no such chip")


def test_a_reader_follows_save_through_eight_modules(tmp_path):
    """From ``StudyResult.save`` to the written bytes, beside the modules of the study itself."""
    result = fr.sweep(plain_scenario(requests=20), vary={"engine.max_num_seqs": [2, 8]}, jobs=1)
    result.save(tmp_path / "imports")
    visited = set()
    sys.setprofile(lambda frame, event, arg: visited.add(frame.f_globals.get("__name__", "")))
    try:
        result.save(tmp_path / "traced")
    finally:
        sys.setprofile(None)
    own = {name for name in visited if name.split(".")[0] in ("forerun", "dashboards", "simulator")}
    assert len({name for name in own if not name.startswith("simulator.studies.")}) <= 8, own
