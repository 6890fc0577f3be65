"""The figures of the app hold what they are made from."""

import numpy as np
import pytest
from plain_scenario import plain_scenario

from dashboards.figures import run as of_run
from dashboards.figures import speculation
from dashboards.figures.attention import attention_map_data, attention_map_figure
from dashboards.figures.load import LoadData, LoadFigure, SimulatedPoint, load_figure
from dashboards.figures.replays import coverage_figure, scores_data, scores_figure
from dashboards.figures.roofline import measured_points, roofline_data, roofline_figure
from dashboards.figures.speculation import SpeedupData
from dashboards.theme import METHOD_LINES, gain_scale
from hwprofiles import KernelLibrary, KernelTime, load_chip
from simulator.replay import replay_kernels
from simulator.running.metrics.usage import BOUNDS
from simulator.speculation import load_curve
from simulator.speculation.attention_level import compare_layouts, consistency_set
from simulator.studies.tune.grid import speculation_grid
from simulator.timing import Kernel
from traces.kernels import read_kernels


def axis_titles(figure):
    result = [axis.title.text for axis in (*figure.select_xaxes(), *figure.select_yaxes())]
    return [title for title in result if title]


def caption(figure):
    return figure.layout.title.text


@pytest.fixture(scope="module")
def sample_replay(project_root):
    samples = project_root / "traces" / "samples"
    kernels = KernelLibrary(load_chip(str(samples / "kernels-cpu.machine.yaml")))
    return replay_kernels(read_kernels(samples / "kernels-cpu.csv"), kernels)


@pytest.fixture(scope="module")
def grid():
    eagle3 = {"method": "eagle3", "num_speculative_tokens": 1, "acceptance": {"alpha": 0.7}}
    scenario = plain_scenario(speculation=eagle3)
    return speculation_grid(scenario, (1, 4), (1, 32, 512), (512, 4096), 8, 512, 128)


def test_bounds_over_time_average_to_the_shares_of_the_run(run):
    data = of_run.bound_time_data(run, bins=50)
    np.testing.assert_allclose(sum(data.shares.values()), 1.0)
    steps = run.steps
    end_s = steps["start_s"] + steps["seconds"]
    span = end_s.max() - steps["start_s"].min()
    for bound in BOUNDS:
        whole = steps[f"{bound}_s"].sum() / (2 * span)
        assert data.shares[bound].mean() == pytest.approx(whole, rel=1e-6)
    figure = of_run.bound_time_figure(data)
    assert "basis: datasheet" in caption(figure)
    assert "share of engine time (%)" in axis_titles(figure)


def test_waterfall_around_a_request_holds_it_and_its_neighbours(run):
    for row in (0, 7, len(run.requests["arrival_s"]) - 1):
        data = of_run.waterfall_data(run, 10, around=row)
        assert len(data.row) == 10
        assert row in data.row
        assert data.marked == row
        assert np.ptp(data.row) <= 10
    failed = int(np.flatnonzero(run.requests["failed"])[0])
    assert of_run.waterfall_data(run, 10, around=failed).marked is None
    assert of_run.waterfall_figure(data).layout.yaxis.ticktext == (str(data.marked),)


def test_comparison_is_of_the_summaries(run, write_one, tmp_path):
    from simulator.running.metrics.run_folder import load_run

    other = load_run(write_one(tmp_path / "two", replications=2))
    runs = {"one": run, "two": other, "again": run}
    data = of_run.comparison_data(runs)
    assert {"mean_ttft_ms", "output_throughput"} <= {metric.key for metric in data.metrics}
    for metric in data.metrics:
        assert metric.values == tuple(each.document["summary"][metric.key] for each in runs.values())
        assert metric.percents[1] == 0.0
    bars = of_run.change_figure(data).data
    assert [trace.name for trace in bars] == ["two", "again"]
    assert list(bars[0].x) == [metric.percents[0] for metric in data.metrics]
    assert [trace.name for trace in of_run.curves_figure(data).data] == list(runs)


def test_roofline_points_lie_where_the_kernels_are():
    chip = load_chip("h100-sxm")
    kernels = {
        "decode": [
            Kernel("down_proj", "gemm", "bf16", 32, KernelTime(1e-5, 0.0, 0.0, 1e-5, 2e8, 1e8)),
            Kernel("gather", "elementwise", "", 1, KernelTime(1e-5, 1e-5, 0.0, 0.0, 0.0, 1e6)),
        ]
    }
    data = roofline_data(chip, kernels, None, "calibrated")
    (point,) = data.points
    assert (point.intensity, point.flops_per_s) == (2.0, pytest.approx(2e13))
    assert point.share == pytest.approx(32 / 33)
    figure = roofline_figure(data)
    roof = figure.data[0]
    peak, bandwidth = chip.peak_flops("bf16"), chip.memory.bandwidth_bytes_per_s
    np.testing.assert_allclose(roof.y, np.minimum(np.array(roof.x) * bandwidth, peak))
    assert peak in roof.y
    assert axis_titles(figure) == ["arithmetic intensity (FLOP/byte)", "FLOP/s"]


def test_measured_points_are_below_nothing_but_their_own_time(sample_replay):
    points = measured_points(sample_replay)
    ratio = points.predicted_flops_per_s / points.measured_flops_per_s
    computing = (sample_replay.prediction.flops > 0) & (sample_replay.prediction.bytes > 0)
    expected = (sample_replay.rows.measured_s / sample_replay.prediction.seconds)[computing]
    np.testing.assert_allclose(ratio, expected)


def test_scores_are_those_of_the_replay(sample_replay):
    data = scores_data(sample_replay)
    assert sum(group.n for group in data.groups) == len(sample_replay.rows)
    assert [group.p90_ape for group in data.groups] == sorted((group.p90_ape for group in data.groups), reverse=True)
    drawn = {label: x for trace in scores_figure(data).data for label, x in zip(trace.y, trace.x, strict=True)}
    assert drawn == {label: group.median_ape for label, group in zip(data.labels, data.groups, strict=True)}
    covered = {score.coverage90 for score in sample_replay.groups if score.regime != "all"}
    bars = coverage_figure(data).data[0]
    assert dict(zip(bars.y, bars.x, strict=True)) == {
        label: group.coverage90 for label, group in zip(data.labels, data.groups, strict=True)
    }
    assert set(bars.x) == covered
    unknown = data._replace(groups=tuple(group._replace(coverage90=None) for group in data.groups))
    assert len(coverage_figure(unknown).data[0].x or ()) == 0


def test_heat_maps_hold_the_grid(grid):
    for data, values in (
        (speculation.speedup_by_batch(grid), grid.by_batch),
        (speculation.speedup_by_context(grid), grid.by_context),
    ):
        heat = speculation.speedup_figure(data).data[0]
        np.testing.assert_array_equal(heat.z, values)
        assert heat.text[0][0] == f"{values[0, 0]:.2f}"
        assert heat.zmin <= values.min()
        assert heat.zmax >= values.max()
    lines = speculation.crossover_figure(grid)
    np.testing.assert_array_equal(lines.data[0].y, grid.by_batch[0])
    assert axis_titles(lines) == ["batch (sequences)", "speed-up of decoding"]


def test_colours_turn_at_one():
    data = SpeedupData("batch", (1, 2), (1,), np.array([[0.6, 3.0]]), "words", "datasheet")
    heat = speculation.speedup_figure(data).data[0]
    neutral = heat.colorscale[2]
    assert neutral[0] == pytest.approx((1.0 - heat.zmin) / (heat.zmax - heat.zmin))
    assert [stop[0] for stop in gain_scale(0.5, 1.0, 3.0)] == sorted(stop[0] for stop in gain_scale(0.5, 1.0, 3.0))


def test_acceptance_shows_what_was_published():
    name = "eagle3-llama-3.1-8b-mt-bench"
    data = speculation.acceptance_data([name, "eagle-minicpm3-4b"], 5, chosen=name)
    first, second = data.curves
    published = load_curve(name).lengths
    assert dict(zip(first.measured_tokens, first.measured_length, strict=True)) == {
        k: length for k, length in published.items() if k <= 5
    }
    assert second.length[-1] == pytest.approx(1 + 0.58 + 0.34 + 0.22 + 0.15 + 0.11)
    figure = speculation.acceptance_figure(data)
    assert [trace.name for trace in figure.data if trace.showlegend] == [name]


def test_load_figure_marks_simulated_means():
    curve = LoadFigure("without", "none", np.array([1.0, 2.0]), np.array([5.0, 6.0]), np.array([7.0, 8.0]), np.ones(2))
    point = SimulatedPoint(1.5, 5.5, None, 90.0, 500)
    figure = load_figure(LoadData((curve,), (point,), 1.5, "calibrated"))
    simulated = [trace for trace in figure.data if trace.name == "simulated"]
    assert [(trace.x[0], trace.y[0]) for trace in simulated] == [(1.5, 5.5), (1.5, 90.0)]
    assert "basis: calibrated" in caption(figure)
    assert not figure.layout.annotations
    ttft = np.array([5.0, 8.0, 12.0])
    curve = LoadFigure("without", "none", np.array([1.0, 2.0, 4.0]), ttft, ttft, ttft)
    marks = load_figure(LoadData((curve,), (), 1.5, "calibrated", 5.0)).layout.annotations
    assert [mark.text for mark in marks] == ["knee 3", "capacity 5"]
    limited = load_figure(LoadData((curve,), (), 1.5, "calibrated", 5.0, {"ttft_ms": 10.0, "tpot_ms": 40.0}))
    assert [line.y0 for line in limited.layout.shapes if line.y0 == line.y1] == [10.0, 40.0]
    assert "mean TTFT <= 10 ms and mean TPOT <= 40 ms up to 3 req/s" in caption(limited)
    above = load_figure(LoadData((curve,), (), 1.5, "calibrated", 5.0, {"ttft_ms": 4.0}))
    assert "mean TTFT <= 4 ms at no load" in caption(above)
    shares = {"compute": 0.25, "memory": 0.75}
    rows = {"analytic": shares, "simulated": shares}
    bars = of_run.bottleneck_figure(of_run.BottleneckData(rows, "datasheet"))
    assert [list(trace.x) for trace in bars.data] == [[25.0, 25.0], [75.0, 75.0]]


def test_methods_have_lines_of_their_own():
    assert len(set(METHOD_LINES.values())) == len(METHOD_LINES)


def test_attention_map_holds_every_comparison():
    parameters = consistency_set("n150-llama-3.1-8b")
    data = attention_map_data(parameters, (1024, 131072), "next-attention", (0.0, 0.875))
    for row, rate in enumerate((0.0, 0.875)):
        for column, context in enumerate(data.contexts):
            expected = compare_layouts(parameters, context, rate, "next-attention").speedup
            assert data.speedup[row, column] == pytest.approx(float(expected))
    heat = attention_map_figure(data).data[0]
    assert list(heat.x) == ["1K", "128K"]
    assert list(heat.y) == ["0.0%", "87.5%"]
    np.testing.assert_array_equal(heat.z, data.speedup)


def test_chips_are_compared_without_a_plan():
    pytest.importorskip("dash")
    from dashboards.app.pages import chips

    shown = chips.compute(None, {"model": "llama-3.1-405b", "prompt": 512, "output": 256, "dtype": "checkpoint",
                                    "chips": ["mi300x", "b200-sxm", "l40s"]})  # fmt: skip
    above, below = shown["curves"].data[0], shown["curves"].data[1]
    assert (above.name, above.yaxis, below.yaxis) == ("mi300x TP8", "y", "y2")
    assert list(above.x) == sorted(above.x, reverse=True), "more requests at once: each user gets less"
    assert list(above.y) == sorted(above.y), "and the chip gives more"
    usd = load_chip("mi300x").price.usd_per_hour
    assert below.y[-1] == pytest.approx(usd / above.y[-1] / 3600 * 1e6)
    assert "l40s: " in str(shown["basis"])
