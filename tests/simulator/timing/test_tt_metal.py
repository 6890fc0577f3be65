"""tt-metal's engine: a fixed batch, prompts in turn, cores by places of the batch, its own limits and formats."""

import numpy as np
import pytest
from plain_scenario import plain_scenario
from timing_steps import decode

from forerun.errors import ForerunError
from hwprofiles import AttentionShape, KernelLibrary, systems
from hwprofiles.formulas import SCALAR
from hwprofiles.kernels.attention import slot_cores
from simulator.running.build import build_replica
from simulator.running.metrics.summary import summarise
from simulator.running.run import simulate
from simulator.timing import StepWork, load_framework

ONE_USER = {"arrivals": {"process": "closed-loop", "max_concurrency": 1}, "num_requests": 4}


def timer(model="llama-3.2-1b", chip="n150", **sections):
    return build_replica(plain_scenario(model, chip, **sections), seed=0).main.timer


def prompts(count, tokens):
    pairs = count * tokens * (tokens + 1) // 2
    return StepWork(count, count * tokens, (pairs,), (count * tokens,), count, (count * (tokens + 1),), 0, 1, (0,))


def test_a_model_runs_on_one_board_as_it_ships():
    scenario = plain_scenario("llama-3.1-8b", "n150")
    assert (scenario.engine.framework, scenario.engine.max_num_seqs, scenario.kv_cache_dtype) == (
        "tt-metal",
        32,
        "bfp8",
    )
    eight_bits = plain_scenario("llama-3.1-8b", "n150", weights_dtype="bfp8")
    for one in (scenario, eight_bits):
        assert build_replica(one, seed=0).memory.num_blocks * one.engine.block_size > 20_000


def test_what_a_scenario_sets_stays_and_another_chip_has_its_own_engine():
    scenario = plain_scenario("llama-3.2-1b", "n150", engine={"max_num_seqs": 8}, kv_cache_dtype="bf16")
    assert (scenario.engine.max_num_seqs, scenario.engine.block_size, scenario.kv_cache_dtype) == (8, 64, "bf16")
    assert plain_scenario("llama-3.2-1b", "n150", engine={"framework": "vllm"}).engine.max_num_seqs == 256
    other = scenario.with_values({"hardware.chip": "h100-sxm"})
    assert (other.engine.framework, other.engine.block_size, other.weights_dtype) == ("vllm", 16, None)


def test_blocks_are_those_of_the_tokens_that_the_server_allots():
    memory = build_replica(plain_scenario("llama-3.2-1b", "n150"), seed=0).memory
    assert memory.num_blocks * memory.block_size == load_framework("tt-metal").max_kv_tokens


@pytest.mark.parametrize(
    ("cores", "slots", "heads", "sharing", "turns"),
    [(64, 1, 8, 8, 1), (64, 32, 8, 1, 4), (64, 32, 1, 2, 1), (64, 1, 1, 16, 1), (110, 32, 8, 1, 4), (56, 1, 4, 14, 1)],
)
def test_cores_are_divided_among_places_of_the_batch(cores, slots, heads, sharing, turns):
    assert slot_cores(SCALAR, cores, slots, heads, 16) == (sharing, turns)


def test_one_sequence_of_a_fixed_batch_slows_with_its_context_as_32_do():
    """Served boards slow by 2 ms per thousand tokens (1B) where memory alone would add 0.1."""
    one, many = timer(), timer(engine={"max_num_seqs": 1})
    growth_s = [each.seconds(decode(1, 5000)) - each.seconds(decode(1, 1000)) for each in (one, many)]
    assert growth_s[0] > 5 * growth_s[1]
    full_s = one.seconds(decode(32, 5000)) - one.seconds(decode(32, 1000))
    assert full_s == pytest.approx(growth_s[0], rel=0.1)


def test_a_slot_moves_only_the_bytes_of_the_sequences_that_run():
    kernels = KernelLibrary("n150")
    shape = AttentionShape(32, 8, 64, 64, 1088.0, "bfp8", slots=32)
    times = [kernels.attention_decode(shape, seqs=n, q_len=1, kv_tokens=n * 4096) for n in (1, 32)]
    assert times[1].bytes == pytest.approx(32 * times[0].bytes)
    assert times[0].seconds == pytest.approx(times[1].seconds, rel=0.1)


def test_prompts_are_padded():
    sizes = load_framework("tt-metal").padded_prompts(10_000)
    assert [sizes[n] for n in (1, 128, 129, 1000, 1025, 2049, 4097, 9000)] == [
        128, 128, 256, 1024, 2048, 4096, 6144, 10_000,
    ]  # fmt: skip
    assert np.all(np.diff(sizes) >= 0)


def test_prompts_of_a_step_run_in_turn():
    step = timer().target
    alone = step.seconds(prompts(1, 200))
    assert step.seconds(prompts(8, 200)) == pytest.approx(8 * alone)
    assert alone == pytest.approx(step.seconds(prompts(1, 256)), rel=0.01)


def test_prices_of_prompts_in_turn_agree():
    """Lists, sums and single steps are the same times, padded prompts and fixed batch included."""
    step = timer().target
    for work in (prompts(3, 300), decode(5, 700)):
        parts = (part if isinstance(part, tuple) else (part,) for part in work)
        columns = [tuple(np.array([number]) for number in part) for part in parts]
        pairs = zip(columns, work, strict=True)
        arrays = StepWork(*(column if isinstance(part, tuple) else column[0] for column, part in pairs))
        costs = step.costs(arrays)
        listed = sum(float(np.sum(kernel.seconds * kernel.times * kernel.exposed)) for kernel in step.kernels(arrays))
        total = float((costs.device_s + costs.host_s)[0])
        assert step.seconds(work) == pytest.approx(total, rel=1e-9)
        assert listed == pytest.approx(float(costs.device_s[0]), rel=1e-9)


def test_logits_of_all_places_cost_the_host_in_earlier_versions_and_none_on_the_device():
    host_s = load_framework("tt-metal").per_sequence_s
    earlier = timer(engine={"framework": "tt-metal-0.56"})
    today, device = timer(), timer(engine={"samples_on": "device"})
    step = [each.seconds(decode(1, 500)) for each in (earlier, today, device)]
    assert step[0] - step[1] == pytest.approx(31 * (host_s + 1.5e-4))
    assert step[1] - step[2] == pytest.approx(1.5e-4)


@pytest.mark.parametrize(("model", "on_host"), [("llama-3.1-8b", 0), ("gemma-3-4b", 32)])
def test_vocabularies_above_64k_logits_a_chip_are_sampled_on_the_host_for_all_slots(model, on_host):
    """262,208 logits on two chips: the host reads and samples 32 rows; Llama's 128,256 stay on chips."""
    engine, hardware = {"samples_on": "device", "max_num_seqs": 32}, {"tensor_parallel": 2}
    served = timer(model, "n300-chip", engine=engine, hardware=hardware)
    step = decode(1, 200, windows=served.windows)
    single = served.seconds(step) - served.target.seconds(step)
    chip_s = 3.15e-3 + load_framework("tt-metal").per_sequence_s * (on_host or 1)
    assert single == pytest.approx(chip_s + on_host * 1.5e-4 * 262208 / 128256)


def test_models_that_lose_too_much_keep_attention_in_16_bits():
    formats = {name: plain_scenario(name, "n300-chip") for name in ("gemma-3-4b", "qwen2.5-7b", "qwen2.5-72b")}
    assert [one.weights_dtype["default"] for one in formats.values()] == ["bf16", "bf16", "bfp8"]
    assert [one.weights_dtype["mlp"] for one in formats.values()] == ["bfp8", "bfp8", "bfp4"]
    assert [one.kv_cache_dtype for one in formats.values()] == ["bf16", "bf16", "bfp8"]


@pytest.mark.parametrize(("users", "measured_ms"), [(1, 18.3), (32, 13.8)])
def test_a_galaxy_runs_its_own_implementation(users, measured_ms):
    """Llama-70B in June 2025 and in November: the later release is a quarter faster."""
    galaxy = timer("llama-3.1-70b", "galaxy", engine={"samples_on": "device"})
    assert 1e3 * galaxy.seconds(decode(users, 200)) == pytest.approx(measured_ms, rel=0.25)


@pytest.mark.parametrize(("outputs", "wasted"), [(128, 3), (1024, 7), (11, 0), (12, 9)])
def test_the_next_request_waits_for_the_rest_of_several_steps(outputs, wasted):
    """Decode steps come in tens: of 127 after the first token, three more run before the queue is looked at."""

    def run(steps):
        engine = {"num_scheduler_steps": steps}
        scenario = plain_scenario("llama-3.2-1b", "n150", 128, outputs, engine=engine, workload=ONE_USER)
        return summarise(simulate(scenario, seed=0))

    single, several = run(1), run(10)
    assert several["mean_tpot_ms"] == pytest.approx(single["mean_tpot_ms"], rel=1e-3)
    waited = (several["mean_ttft_ms"] - single["mean_ttft_ms"]) / several["mean_tpot_ms"]
    assert waited == pytest.approx(wasted * 3 / 4, rel=0.15, abs=0.01), "the first of four requests waits for nothing"


def test_several_steps_are_refused_where_no_rule_runs_them():
    scenario = plain_scenario(engine={"num_scheduler_steps": 8})
    with pytest.raises(ForerunError, match=r"engine\.num_scheduler_steps: .* prefill-first \(got vllm-v1\)"):
        build_replica(scenario, seed=0)


def test_prompts_beside_decoding_sequences_are_refused():
    scenario = plain_scenario("llama-3.2-1b", "n150", engine={"scheduler": "vllm-v1"})
    with pytest.raises(ForerunError, match=r"engine\.scheduler: tt-metal computes no prompts beside"):
        build_replica(scenario, seed=0)


@pytest.mark.parametrize("name", systems())
def test_a_system_is_its_chips(name):
    hardware = plain_scenario("llama-3.1-70b", name).hardware
    assert {key: getattr(hardware, key) for key in systems()[name]} == systems()[name]
    assert plain_scenario("llama-3.1-70b", name, hardware={"tensor_parallel": 4}).hardware.tensor_parallel == 4
