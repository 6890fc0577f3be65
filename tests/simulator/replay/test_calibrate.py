"""Calibration: it recovers known parameters, gives their uncertainty, and never makes anything faster than light."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_kernels import attention_rows, gemm_rows, measured, rows_of
from results import checked_result

from forerun.errors import ForerunError
from hwprofiles import BASES, KernelLibrary, load_chip
from hwprofiles.choice import find_parameters
from hwprofiles.dtypes import DTYPES, dtype_bytes, format_of
from hwprofiles.schema import read_kernel_sets
from simulator.replay import Split, predict_table, replay_kernels, write_profile
from simulator.replay.calibrate import calibrate
from simulator.replay.correction import fit_hinges
from simulator.replay.evidence import conformal_intervals
from simulator.replay.fit import family_rows, free_values
from simulator.replay.speed_of_light import sol_seconds
from traces.kernels import concatenate, words

CHIP = load_chip("h100-sxm")
BARE = CHIP.model_copy(update={"kernels": {}})
SPLIT = Split(0.7, 1)


@pytest.fixture(scope="module")
def calibration(kernels):
    return calibrate(kernels, BARE, "sglang", residual=False)


def test_a_fit_finds_the_truth_behind_noisy_rows(calibration, kernels):
    for one in calibration.fits:
        assert one.held_out_mape < 4.5, one  # the noise alone is 2.4 %
    fresh = measured(gemm_rows(300, np.random.default_rng(77)), "h100-sxm", "sglang")
    assert replay_kernels(fresh, KernelLibrary(calibration.chip, "sglang")).overall.mape < 4.0
    before = replay_kernels(kernels, KernelLibrary(BARE, "sglang")).overall.mape
    assert replay_kernels(kernels, KernelLibrary(calibration.chip, "sglang"), SPLIT).overall.mape < before


def test_the_profile_says_what_it_rests_on(calibration):
    one = calibration.fits[0]
    source = one.parameters.source
    assert source.kind == "fitted"
    assert source.rows == one.rows
    assert source.held_out_mape == pytest.approx(one.held_out_mape, abs=0.01)
    assert one.parameters.fit.ranges["n"] == (1024.0, 19456.0)
    assert KernelLibrary(calibration.chip, "sglang").basis("gemm", "bf16") == "calibrated"
    document = calibration.document
    assert {family["family"] for family in document["families"]} == {"gemm", "attention_decode"}


def test_intervals_cover_nine_in_ten_held_out_rows(calibration, kernels):
    report = replay_kernels(kernels, KernelLibrary(calibration.chip, "sglang"), SPLIT)
    assert 82 < report.overall.coverage90 < 98


def test_shapes_outside_the_fit_are_extrapolated(calibration):
    rows = gemm_rows(4, np.random.default_rng(0))
    wide = replace(rows, sizes={**rows.sizes, "n": rows.sizes["n"] * 100})
    table = measured(concatenate([rows, wide]), "h100-sxm", "sglang")
    report = replay_kernels(table, KernelLibrary(calibration.chip, "sglang"))
    assert report.basis == "extrapolated"
    assert [BASES[code] for code in report.prediction.basis] == ["calibrated"] * 4 + ["extrapolated"] * 4


@pytest.mark.parametrize("seed", range(3))
def test_twenty_rows_per_family_are_enough(seed):
    generator = np.random.default_rng(seed)
    few = concatenate([gemm_rows(20, generator), attention_rows(20, generator)])
    calibration = calibrate(measured(few, "h100-sxm", "sglang", 0.03, seed), BARE)
    many = concatenate([gemm_rows(300, generator), attention_rows(300, generator)])
    report = replay_kernels(measured(many, "h100-sxm", "sglang"), KernelLibrary(calibration.chip))
    errors = {group.op: group.mape for group in report.groups if group.regime == "all"}
    assert errors["gemm"] < 10
    assert errors["attention_decode"] < 14
    assert {one.residual_mape for one in calibration.fits} == {None}


def test_a_written_profile_is_a_chip_like_any_other(calibration, tmp_path, kernels):
    """Without corrections, unless there is a file of them, which is read with the profile."""
    (path,) = write_profile(calibration, tmp_path / "mine.yaml")
    chip = load_chip(path)
    assert chip.memory == CHIP.memory
    before = predict_table(kernels, KernelLibrary(calibration.chip, "sglang")).seconds
    assert predict_table(kernels, KernelLibrary(chip, "sglang")).seconds == pytest.approx(before, rel=1e-4)
    assert not KernelLibrary(chip, corrected=True).corrections
    (tmp_path / "mine.residual.npz").write_bytes(b"PK")
    with pytest.raises(ForerunError, match="damaged"):
        KernelLibrary(load_chip(path), corrected=True)


def corrected_library(calibration):
    """The kernels of a calibration that was not written yet, with what it learned."""
    library = KernelLibrary(calibration.chip)
    library.corrections = calibration.corrections
    return library


@pytest.fixture(scope="module")
def bent():
    """Kernels with a slow path that physics does not know: deep products on this made-up library take 40 % longer."""
    generator = np.random.default_rng(8)
    table = measured(gemm_rows(3000, generator), "h100-sxm", "sglang", 0.01)
    slow = np.where(table.size("k") > 12000, 1.4, 1.0)
    return replace(table, measured_s=table.measured_s * slow)


def test_the_residual_learns_what_physics_cannot_say_and_can_be_switched_off(bent, tmp_path):
    calibration = calibrate(bent, BARE)
    files = write_profile(calibration, tmp_path / "mine.yaml")
    assert [path.name for path in files] == ["mine.yaml", "mine.residual.npz"]
    physics = replay_kernels(bent, KernelLibrary(load_chip(files[0]), corrected=False), SPLIT)
    corrected = replay_kernels(bent, KernelLibrary(load_chip(files[0]), corrected=True), SPLIT)
    assert corrected.overall.mape < 0.5 * physics.overall.mape
    assert calibration.fits[0].residual_mape == pytest.approx(corrected.overall.mape, rel=0.01)
    assert 82 < corrected.overall.coverage90 < 98
    assert (corrected.residual, physics.residual) == (True, False)
    assert physics.beside == corrected.overall._replace(coverage90=physics.beside.coverage90)
    assert corrected.beside.mape == physics.overall.mape


def test_rows_beyond_what_a_correction_saw_keep_the_interval_of_physics(bent, tmp_path):
    """They are corrected as their nearest shape, lest a larger product be faster, but nothing vouches for it."""
    small = calibrate(bent.where(bent.size("n") <= 8192), BARE)
    physics = replay_kernels(bent, KernelLibrary(small.chip))
    corrected = replay_kernels(bent, corrected_library(small))
    outside = bent.size("n") > 8192
    assert outside.sum() > 100
    for name in ("low", "high"):
        before, after = (getattr(report.prediction, name)[outside] for report in (physics, corrected))
        np.testing.assert_allclose(before, after, rtol=1e-9)
    assert (physics.prediction.high != corrected.prediction.high)[~outside].any()


def test_parameters_alone_are_written_as_json_with_the_command_that_repeats_them(calibration, tmp_path):
    (file,) = write_profile(calibration, tmp_path / "h100-sxm.json")
    (profile,) = write_profile(calibration, tmp_path / "mine.yaml")
    written = json.loads(file.read_text(encoding="utf-8"))
    assert read_kernel_sets(written["kernels"]) == load_chip(profile).kernels
    assert written["command"].endswith("--split train=0.7,seed=1 --output h100-sxm.json")
    with pytest.raises(ForerunError, match=r"mine\.txt: a profile is a \.yaml file"):
        write_profile(calibration, tmp_path / "mine.txt")


@pytest.fixture(scope="module")
def too_fast(bent):
    """A calibration on kernels just at the edge of what the light-speed rule lets pass."""
    prediction = predict_table(bent, KernelLibrary(CHIP, "sglang"))
    seconds = np.maximum(sol_seconds(prediction, CHIP) / 1.09, 1e-6)
    return calibrate(replace(bent, measured_s=seconds), BARE)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 65536),
    n=st.integers(1, 200_000),
    k=st.integers(1, 200_000),
    dtype=st.sampled_from(["bf16", "fp8", "int4", "fp32"]),
)
@example(m=1960, n=1960, k=1957, dtype="bf16")  # a correction that only the peak of a faster format would stop
def test_no_calibrated_prediction_is_faster_than_light(too_fast, m, n, k, dtype):
    table = rows_of("gemm", {"m": m, "n": n, "k": k}, dtype=dtype, cache="cold")
    for library in (KernelLibrary(too_fast.chip), corrected_library(too_fast)):
        prediction = predict_table(table, library)
        assert prediction.seconds[0] >= sol_seconds(prediction, CHIP)[0] * (1 - 1e-12)


def test_too_few_rows_are_no_calibration():
    with pytest.raises(ForerunError, match="rows a fit needs"):
        calibrate(measured(gemm_rows(3, np.random.default_rng(0)), "h100-sxm", "sglang"), BARE)


def test_other_libraries_rows_are_left_out(kernels):
    half = kernels.where(np.arange(40))
    others = [replace(half, words={**half.words, "library": words([name] * 40)}) for name in ("sglang", "vllm")]
    calibration = calibrate(concatenate(others), BARE, "vllm", residual=False)
    assert calibration.skipped == {"another library than vllm": 40}
    assert set(calibration.chip.kernels) == {"vllm"}


def test_hinge_functions_learn_a_step_and_a_slope_and_never_fall():
    generator = np.random.default_rng(0)
    features = generator.uniform(0, 1, (3, 2000))
    rising = np.where(features[1] > 0.5, 0.3, -0.1) + 0.2 * features[0]
    hinges = fit_hinges(features[:, ::2], rising[::2], generator)
    assert np.abs(hinges(features) - rising)[1::2].mean() < 0.03
    falling = fit_hinges(features[:, ::2], (rising - 0.3 * features[2])[::2], generator)
    for feature in range(3):
        larger = features.copy()
        larger[feature] += generator.uniform(0, 0.5, 2000)
        assert np.all(falling(larger) >= falling(features) - 1e-12)


def test_conformal_intervals_cover_by_regime():
    generator = np.random.default_rng(0)
    regime = generator.integers(0, 3, 6000).astype(np.int8)
    ratio = np.exp(generator.normal(0, 0.05 * (1 + regime)))
    result = conformal_intervals(ratio[::2], regime[::2], np.ones(3000, dtype=bool))
    for code, name in enumerate(("latency", "memory", "compute")):
        fresh = ratio[1::2][regime[1::2] == code]
        low, high = result[name]
        assert np.mean((fresh >= low) & (fresh <= high)) == pytest.approx(0.9, abs=0.03)
    assert conformal_intervals(np.zeros(0), np.zeros(0, dtype=np.int8), np.zeros(0, dtype=bool)) == {}


def test_a_row_is_corrected_alike_alone_and_beside_other_operations(bent):
    calibration = calibrate(
        concatenate([bent, measured(attention_rows(400, np.random.default_rng(1)), "h100-sxm", "trtllm")]), BARE
    )
    library = corrected_library(calibration)
    single = replay_kernels(bent, library).prediction.seconds
    both = concatenate([measured(attention_rows(50, np.random.default_rng(2)), "h100-sxm", "sglang"), bent])
    assert replay_kernels(both, library).prediction.seconds[50:] == pytest.approx(single)
    attention = both.where(np.arange(50))
    other = replay_kernels(both, library).prediction.seconds[:50]
    assert replay_kernels(attention, library).prediction.seconds == pytest.approx(other)


def mixed_rows(count, generator):
    sizes = {
        "q_len": generator.choice([64, 512, 2048], count),
        "kv_len": 4096 * generator.integers(1, 4, count),
        "decode_batch": generator.choice([1, 16, 128], count),
        "decode_kv_len": generator.choice([256, 2048, 8192], count),
    }
    one = {"batch": 1, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    return rows_of("attention_mixed", one | sizes, dtype="bf16", kv_dtype="bf16", cache="cold")


def with_mixed(**changes):
    """The kernel sets of an H100 under SGLang, whose prompts are served beside decodes in another way."""
    sets = {family: dict(values) for family, values in CHIP.kernels["sglang"].items()}
    sets["attention_prefill"]["bf16"] = sets["attention_prefill"]["bf16"].model_copy(update=changes)
    return sets


@pytest.mark.parametrize("truth", ["separate", "one-pass"])
def test_the_way_mixed_batches_run_is_detected(truth):
    generator = np.random.default_rng(4)
    prompts = attention_rows(200, generator, "attention_prefill")
    table = concatenate([prompts, attention_rows(200, generator), mixed_rows(200, generator)])
    library = KernelLibrary(CHIP.model_copy(update={"kernels": {"generic": with_mixed(mixed=truth, kept_share=0.5)}}))
    table = replace(table, measured_s=predict_table(table, library).seconds)
    fitted = calibrate(table, BARE, residual=False).chip.kernels["generic"]["attention_prefill"]["bf16"]
    assert fitted.mixed == truth
    if truth == "one-pass":
        assert fitted.kept_share == 0.5


def test_one_pass_over_single_queries_is_no_faster_than_a_kernel_for_them():
    one_pass = CHIP.model_copy(update={"kernels": {"sglang": with_mixed(mixed="one-pass")}})
    table = mixed_rows(100, np.random.default_rng(0))
    table = table.where(table.size("decode_batch") == 128)
    together, separate = (predict_table(table, KernelLibrary(chip, "sglang")) for chip in (one_pass, CHIP))
    assert (together.seconds >= sol_seconds(together, CHIP)).all()
    assert (together.flops == separate.flops).all()
    assert np.median(together.seconds / separate.seconds) > 1.5


def test_a_library_of_ones_own_can_be_fitted(kernels):
    calibration = calibrate(kernels, CHIP, "my-engine", residual=False)
    assert KernelLibrary(calibration.chip, "my-engine").parameters("gemm") == calibration.fits[0].parameters


def test_a_fit_without_error_estimate_is_the_same_and_lists_its_shapes():
    rows = measured(gemm_rows(40, np.random.default_rng(0)), "h100-sxm", "sglang", 0.03)
    judged, fitted = (calibrate(rows, BARE, residual=False, judge=one) for one in (True, False))
    assert fitted.fits == ()
    (custom,), (other,) = (result.chip.kernels["generic"]["gemm"].values() for result in (fitted, judged))
    assert free_values(custom) == free_values(other)
    for name in ("m", "n", "k"):
        assert custom.fit.ranges[name] == (rows.size(name).min(), rows.size(name).max())
    assert other.fit.intervals
    assert not custom.fit.intervals


def test_replays_and_calibrations_are_results_as_runs_are(calibration, kernels, tmp_path):
    replay = replay_kernels(kernels, KernelLibrary(calibration.chip, "sglang"))
    for result, file in ((replay, "replay.json"), (calibration, "h100-sxm.yaml")):
        checked_result(result, tmp_path, file)
        assert "h100-sxm" in repr(result)
        assert result.table("errors").rows
        assert result.to_arrow().num_rows == len(result.records()) > 0
    assert replay.summary["rows"] == len(kernels)
    assert replay.figures == ("parity", "errors")
    assert set(calibration.summary) == {"gemm bf16", "attention_decode bf16"}
    assert calibration.figures == ()


FAST, SLOW = "fast_experts", "slow_experts"


def rows(kernel, factor, dtype="fp8", count=90):
    """Times of one kernel, ``factor`` times those the H100's own set for the format gives."""
    generator = np.random.default_rng(3)
    sizes = {"tokens": generator.integers(1, 4096, count), "num_experts": 64, "experts_per_token": 8, "hidden": 2048,
             "intermediate": 1024, "tensor_parallel": 1, "expert_parallel": 1}  # fmt: skip
    seconds = factor * KernelLibrary("h100-sxm").moe(**sizes, dtype=dtype).seconds
    return rows_of("moe", sizes, seconds, dtype=dtype, source=kernel)


@pytest.fixture(scope="module")
def both():
    return concatenate([rows(FAST, 1.0), rows(SLOW, 4.0, count=60)])


def test_kernels_are_distinguished_by_the_name_a_trace_gives(both):
    assert set(family_rows(both)) == {("moe", f"fp8@{FAST}"), ("moe", f"fp8@{SLOW}")}


def test_each_is_predicted_by_its_own_fit_and_the_larger_stands_for_the_format(both):
    calibration = calibrate(both, load_chip("h100-sxm"), residual=False)
    assert {one.dtype for one in calibration.fits} == {f"fp8@{FAST}", f"fp8@{SLOW}"}
    assert replay_kernels(both, KernelLibrary(calibration.chip)).overall.mape < 6
    sets = calibration.chip.kernels["generic"]["moe"]
    assert sets["fp8"] == sets[f"fp8@{FAST}"]


def test_a_kernel_alone_is_its_format_and_comes_before_an_earlier_fit_of_it(both):
    first = calibrate(both, load_chip("h100-sxm"), residual=False)
    again = calibrate(rows(SLOW, 2.0), first.chip, residual=False)
    assert f"fp8@{SLOW}" not in again.chip.kernels["generic"]["moe"]
    assert replay_kernels(rows(SLOW, 2.0), KernelLibrary(again.chip)).overall.mape < 6


def test_an_unknown_kernel_has_the_set_of_its_format():
    chip = load_chip("h100-sxm")
    assert find_parameters(chip, "vllm", "moe", "fp8@never_heard_of") == find_parameters(chip, "vllm", "moe", "fp8")


def test_block_scaled_fp8_multiplies_in_fp8_and_reads_its_scales():
    assert format_of("fp8_block@name") == "fp8_block"
    assert DTYPES["fp8"] < dtype_bytes("fp8_block") < 1.001
    chip = load_chip("h100-sxm")
    assert chip.peak_flops("fp8_block") == chip.peak_flops("fp8")
    wide = KernelLibrary("a100-sxm-80gb").gemm(4096, 8192, 8192, "fp8_block").seconds
    assert wide > KernelLibrary(chip).gemm(4096, 8192, 8192, "fp8_block").seconds


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_the_truth_behind_collectives_is_detected(op):
    """A machine whose links reach half of their rate where those of the class reach four fifths."""
    known = KernelLibrary(BARE).parameters("collective", "any")
    slow = known.model_copy(update={"bandwidth_efficiency": 0.5, "launch_s": 2 * known.launch_s})
    truth = KernelLibrary(BARE.model_copy(update={"kernels": {"generic": {"collective": {"any": slow}}}}))
    sizes = {"message_bytes": np.tile(2 ** np.arange(20, 31), 2), "world_size": np.repeat((2, 4), 11)}
    requested = rows_of(op, sizes)
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.02, len(requested)))
    table = replace(requested, measured_s=predict_table(requested, truth).seconds * noise)
    calibration = calibrate(table, BARE, residual=False)
    (fit,) = calibration.fits
    assert (fit.family, fit.rows) == ("collective", 22)
    assert fit.parameters.bandwidth_efficiency == pytest.approx(0.5, rel=0.05)
    error, before = (
        np.abs(predict_table(table, KernelLibrary(chip)).seconds / table.measured_s - 1)
        for chip in (calibration.chip, BARE)
    )
    assert error.mean() < 0.03
    assert before.mean() > 0.2
