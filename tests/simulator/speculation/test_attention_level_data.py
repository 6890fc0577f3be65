"""Hit rates as data and as numerics; the documented parameter set against what was published."""

import csv
import json
from importlib import resources

import numpy as np
import pytest
from example_modules import load_example
from numpy.testing import assert_allclose, assert_array_equal
from pydantic import ValidationError
from scipy.special import ndtri

from forerun.errors import ForerunError
from simulator.speculation.attention_level import (
    AttentionSpeculationConfig,
    compare_layouts,
    consistency_set,
    crossover_range,
    mechanism_costs,
    published_hit_rate,
    published_hit_rates,
    sensitivity,
    speedup_band,
)
from simulator.speculation.attention_level.hit_rates import (
    batch_hit_rate,
    error_model,
    error_model_parameters,
    rate_range,
)
from simulator.studies.alspec import StepPricer, layout

SET = consistency_set("n150-llama-3.1-8b")
CONTEXT = 256
HIT_RATES = load_example("alspec_hit_rates")


def layer(generator):
    """Query, keys and values of a made-up layer of 4 heads on 2 KV heads."""
    return generator.standard_normal((4, 16)), *(generator.standard_normal((CONTEXT, 2, 16)) for _ in range(2))


WINDOWS = (8, 16, 32, 64, 128, 256)
TOLERANCES = (0.02, 0.05, 0.1, 0.2, 0.4)


def test_published_hit_rates(shared_data):
    facts = json.loads((shared_data / "published" / "alspec.json").read_text())["published"]
    known = {fact["fact"]: fact["value"] for fact in facts}
    names = {
        "ifeval": "hit rate IFEval lambda .10",
        "gpqa": "hit rate GPQA-CoT lambda .10",
        "gsm8k": "hit rate GSM8K-CoT lambda .10",
        "hotpotqa": "hit rate HotpotQA",
    }
    for task, fact in names.items():
        assert published_hit_rate(task) == known[fact]
        assert list(published_hit_rates(task)) == known["lambda grid"]
    published = SET.published
    assert published["contexts"] == known["contexts swept"]
    assert published["hit_rates"] == known["hit rates swept"]


def test_an_unknown_task_is_refused():
    with pytest.raises(ForerunError, match="no hit rates of 'gsm8'; did you mean 'gsm8k'"):
        published_hit_rate("gsm8")


MODEL = error_model()


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.789, 0.99])
def test_lambda_and_s_move_a_hit_rate_from_where_it_was_measured(rate):
    assert MODEL.moved(rate, 0.10, 128) == rate
    by_tolerance = [MODEL.moved(rate, tolerance, 128) for tolerance in TOLERANCES]
    by_window = [MODEL.moved(rate, 0.05, window) for window in (64, 128, 256, 1024)]
    assert by_tolerance == sorted(by_tolerance)
    assert by_window == sorted(by_window)
    for end in (0.0, 1.0):
        assert MODEL.moved(end, 0.3, 64) == end
    low, high = rate_range(rate, 0.2, 256)
    assert low < MODEL.moved(rate, 0.2, 256) < high


def test_the_law_is_what_drawn_errors_give():
    """A million log-normal errors: the share below lambda, and what passes, as counted."""
    middle = np.log(0.1) - MODEL.spread * 0.803  # a hit rate of 0.789
    generator = np.random.default_rng(3)
    for tolerance, window in ((0.05, 128), (0.2, 512), (0.1, 128)):
        drawn = np.exp(
            middle - MODEL.window_exponent * np.log(window / 128) + MODEL.spread * generator.standard_normal(1_000_000)
        )
        passing = drawn < tolerance
        assert MODEL.moved(0.789, tolerance, window) == pytest.approx(passing.mean(), abs=2e-3)
        assert MODEL.error_let_through(0.789, tolerance, window) == pytest.approx((drawn * passing).mean(), rel=5e-3)
        assert MODEL.static_error(0.789, window) == pytest.approx(drawn.mean(), rel=5e-3)


def test_the_law_was_fitted_on_the_errors_that_ship():
    """Quantiles of a real model's errors by context and S: spread and exponent as the file has them, and ranges."""
    text = resources.files("simulator.speculation.attention_level").joinpath("measured_errors.csv").read_text("utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if 16 * int(row["window"]) <= int(row["context"])]
    assert len(rows) >= 30
    levels = {name: int(name[1:]) / 100 for name in rows[0] if name.startswith("q")}
    names = [name for name, level in levels.items() if 0.05 <= level <= 0.95]
    scores = ndtri([levels[name] for name in names])
    fits = np.array([np.polyfit(scores, np.log([float(row[name]) for name in names]), 1) for row in rows])
    of_text = [row["text"] == rows[0]["text"] for row in rows]
    design = np.column_stack(
        [np.log([[int(r["window"]), int(r["context"])] for r in rows]), np.ones(len(rows)), of_text]
    )
    by_window, by_context, *_ = np.linalg.lstsq(design, fits[:, 1], rcond=None)[0]
    assert -by_window == pytest.approx(MODEL.window_exponent, abs=0.01)
    assert by_context == pytest.approx(0.23, abs=0.01)
    assert np.median(fits[:, 0]) == pytest.approx(MODEL.spread, abs=0.03)
    ranges = error_model_parameters()["spread"]
    assert ranges.low - 0.02 < fits[:, 0].min()
    assert fits[:, 0].max() < ranges.high + 0.02


def test_more_is_let_through_with_a_larger_lambda_up_to_the_static_error():
    through = [MODEL.error_let_through(0.789, tolerance, 128) for tolerance in (0.02, 0.05, 0.1, 0.2, 0.3, 0.9)]
    assert through == sorted(through)
    assert through[-1] == pytest.approx(MODEL.static_error(0.789, 128), rel=0.01)


def test_s_has_an_optimum_and_lambda_is_paid_in_error():
    """At 128K on the paper's kernels: a larger S hits more often, until its own time is what a hit waits for."""
    base = {"model": SET.model, "weights_dtype": "bfp8", "kv_cache_dtype": "bfp8"}
    base |= {"engine": {"framework": "vllm", "max_num_seqs": 16}}
    hardware = {"chip": SET.chip, "tensor_parallel": 4, "speculative_parallel": 2}

    def seconds(**levers):
        attention = {"task": "gsm8k", **levers}
        return StepPricer(layout(base, hardware=hardware, attention_speculation=attention)).step(1, 131072).seconds

    by_window = [seconds(window_tokens=window) for window in (64, 256, 1024, 4096, 16384)]
    assert 0 < int(np.argmin(by_window)) < 4, "an optimum inside"
    by_tolerance = [seconds(**{"lambda": tolerance}) for tolerance in (0.02, 0.05, 0.1, 0.2, 0.3)]
    assert by_tolerance == sorted(by_tolerance, reverse=True)
    assert seconds() == seconds(**{"lambda": 0.1, "window_tokens": 128})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give one of hit_rate, hit_rate_by_context, task"),
        ({"hit_rate": 0.5, "task": "gsm8k"}, "give one of"),
        ({"hit_rate": 0.5, "lambda": 1.1}, "beyond 1 nothing is verified"),
        ({"hit_rate_by_context": [[1024, 0.9], [512, 0.8]]}, "contexts must rise"),
        ({"hit_rate_by_context": [[1024, 1.9]]}, "no .context in tokens, hit rate. pair"),
        ({"hit_rate": 0.5, "reading": "never"}, "next-attention"),
        ({"hit_rate": 0.5, "sync_us": 25.0}, "not permitted"),
        ({"hit_rate": 0.5, "batch_correlation": 0.3}, "set verification: every-query or per-request"),
        (
            {"hit_rate": 0.5, "verification": "per-request", "reading": "pipelined"},
            "not modelled in the ideal pipeline",
        ),
        ({"hit_rate": 0.5, "layer_correlation": 0.3}, "set hits: drawn"),
        ({"hit_rate": 0.5, "token_correlation": 0.0}, "set hits: drawn"),
    ],
)
def test_bad_blocks_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        AttentionSpeculationConfig.model_validate(fields)


def test_a_block_reads_back_as_it_was_written():
    written = {"task": "ifeval", "lambda": 0.1, "reading": "same-layer"}
    block = AttentionSpeculationConfig.model_validate(written)
    assert block.model_dump(exclude_unset=True) == written
    assert AttentionSpeculationConfig.model_validate(block.model_dump()) == block


def test_rates_by_task_layer_and_context():
    def rates(fields, context):
        return AttentionSpeculationConfig.model_validate(fields).layer_hit_rates(3, context)

    assert rates({"task": "ifeval"}, 10) == [0.9] * 3
    assert rates({"hit_rate": [0.2, 0.5, 1.0]}, 10) == [0.2, 0.5, 1.0]
    points = {"hit_rate_by_context": [[1024, 0.9], [16384, 0.5]]}
    assert_allclose(rates(points, np.array([1, 1024, 4096, 16384, 1e6]))[1], [0.9, 0.9, 0.7, 0.5, 0.5])
    with pytest.raises(ValueError, match="2 rates for 3 layers"):
        rates({"hit_rate": [0.2, 0.5]}, 10)
    assert batch_hit_rate(0.9, 4, "joint") == 0.9
    assert_allclose(batch_hit_rate(0.9, 4, "every-query"), 0.9**4)


def test_exact_attention_is_the_textbook_one():
    generator = np.random.default_rng(3)
    query, keys, values = layer(generator)
    exact, _ = HIT_RATES.attention_outputs(query, keys, values, [16])
    for head in range(4):
        logits = keys[:, head // 2] @ query[head] / np.sqrt(16)
        weights = np.exp(logits) / np.exp(logits).sum()
        assert_allclose(exact[head], weights @ values[:, head // 2], rtol=1e-10)


def test_the_window_is_attention_over_its_keys_alone():
    generator = np.random.default_rng(4)
    query, keys, values = layer(generator)
    _, speculative = HIT_RATES.attention_outputs(query, keys, values, [16])
    kept = np.r_[0:16, CONTEXT - 16 : CONTEXT]
    single, _ = HIT_RATES.attention_outputs(query, keys[kept], values[kept], [16])
    assert_allclose(speculative[0], single, rtol=1e-10)


def test_a_window_of_the_whole_context_is_exact():
    exact, speculative = HIT_RATES.attention_outputs(*layer(np.random.default_rng(5)), [128, 256, 10_000])
    assert_array_equal(HIT_RATES.relative_errors(exact, speculative), 0.0)


@pytest.mark.parametrize(("context", "window"), [(10, 3), (10, 5), (10, 6), (7, 1), (3, 9)])
def test_the_window_is_the_first_and_the_last_chunk(context, window):
    expected = [i < window or i >= context - window for i in range(context)]
    assert HIT_RATES.window_mask(context, window).tolist() == expected


def test_published_maxima_from_one_parameter_set():
    published = SET.published
    result = compare_layouts(SET, published["context_tokens"], published["hit_rate"])
    assert_allclose(result.speedup, published["max_speedup"], rtol=0.05)
    assert_allclose(result.overhead_reduction, published["max_overhead_reduction"], rtol=0.20)
    assert SET.label.startswith("consistency, not validation")
    grid = [[compare_layouts(SET, c, h).speedup for c in published["contexts"]] for h in published["hit_rates"]]
    assert np.max(grid) == grid[-1][-1], "the maximum is where it was published"
    assert (np.diff(grid, axis=1) > 0).all(), "gain rises with context"
    assert (np.diff(np.array(grid)[:, 1:], axis=0) > 0).all(), "and with hits, once attention outlasts its first chunk"


def test_tp8_wins_at_1k_and_the_crossover_has_a_range():
    for rate in SET.published["hit_rates"]:
        assert all(compare_layouts(SET, 1024, rate, changes=changes).speedup < 1 for _, changes in SET.cases)
    custom, low, high = crossover_range(SET, 0.875)
    assert 1024 < low < custom < high < 131072
    assert_allclose(compare_layouts(SET, custom, 0.875).speedup, 1.0, atol=1e-4)
    assert crossover_range(SET, 0.5)[2] is None, "on a plain roofline it never pays at 50 %"


def test_sensitivity_spans_the_collected_range():
    speedups = [case.speedup for case in sensitivity(SET, 131072, 0.875)]
    assert min(speedups) == pytest.approx(1.02, abs=0.01)
    assert max(speedups) == pytest.approx(1.61, abs=0.01)
    low, high = speedup_band(SET, np.array([1024.0, 131072.0]), 0.875)
    assert (low[1], high[1]) == pytest.approx((min(speedups), max(speedups)))


def test_attention_is_limited_per_kv_head():
    values = SET.values()
    one, two = (SET.attention_s(chips, 65536, values) for chips in (8, 4))
    assert_allclose(one, 334e-6, rtol=5e-3, err_msg="T3000 at 64K, from its published decode rate")
    assert_allclose(one, two, rtol=1e-9, err_msg="a second head on the chip brings its own cores")


def test_the_set_is_what_the_engine_gives():
    """One answer: the closed form of the published case and the engine's decode steps, in every module."""
    base = {
        "model": SET.model,
        "weights_dtype": "bfp8",
        "kv_cache_dtype": "bfp8",
        "engine": {"framework": "vllm", "max_num_seqs": 16},
    }
    serial = StepPricer(layout(base, hardware={"chip": SET.chip, "tensor_parallel": 8}))
    for rate in (0.5, 0.875):
        groups = layout(
            base,
            hardware={"chip": SET.chip, "tensor_parallel": 4, "speculative_parallel": 2},
            attention_speculation={"hit_rate": rate},
        )
        pricer = StepPricer(groups)
        for context in SET.published["contexts"]:
            engine = serial.step(1, context).seconds / pricer.step(1, context).seconds
            assert compare_layouts(SET, context, rate).speedup == pytest.approx(engine, rel=2e-3)


def test_every_unknown_has_a_range_and_a_source():
    for kind in ("tensix", "gpu-datacenter", "gpu-consumer"):
        for parameter in mechanism_costs(kind).values():
            assert parameter.low < parameter.value < parameter.high
            assert parameter.source.startswith("assumed: ")
    with pytest.raises(ForerunError, match="no parameter 'sync'; did you mean 'sync_s'"):
        SET.values({"sync": 1.0})
    with pytest.raises(ForerunError, match="no parameter set 'n150'"):
        consistency_set("n150")
