"""The kernels of a step add up to the step, and plain steps hold what they say."""

from array import array
from contextlib import suppress

import numpy as np
import pytest
from golden.golden import scenarios
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plain_scenario import plain_data, plain_scenario
from timing_steps import arrays, decode, deployment

from forerun.errors import ForerunError
from hwprofiles.formulas import KernelTime
from simulator.llm import architecture_names
from simulator.running.build import build_replica, build_run
from simulator.running.scenario import scenario_from
from simulator.serving.compiled import engine_module
from simulator.studies.steady_state.prices import decode_steps, prompt_chunks
from simulator.timing import Costs, StepTimer, StepWork, causal_pairs, decode_step, keys_read, running
from simulator.timing.kernels import Kernel

LAYOUTS = {
    "fp32": lambda: deployment("llama-3.2-1b", weights="fp32"),
    "whole experts": lambda: deployment("qwen3-30b-a3b", tensor_parallel=2, expert_parallel=2),
    "uneven experts": lambda: deployment(
        "qwen3-30b-a3b", tensor_parallel=2, expert_parallel=2, expert_routing="power-law-1.2"
    ),
    "even experts": lambda: deployment("qwen3-30b-a3b", expert_routing="balanced"),
    "groups": lambda: deployment(
        "mixtral-8x7b", "h200-sxm", tensor_parallel=2, attention_data_parallel=2, expert_parallel=4
    ),
    "groups outside graphs": lambda: deployment(
        "mixtral-8x7b", "h200-sxm", attention_data_parallel=4, expert_parallel=4, cuda_graphs=False
    ),
    "groups with a shared expert": lambda: deployment(
        "deepseek-v2-lite", "h200-sxm", attention_data_parallel=4, expert_parallel=1
    ),
    "no gate": lambda: deployment("opt-6.7b"),
    "windows": lambda: deployment("gemma-2-9b"),
    "latent": lambda: deployment("deepseek-v2-lite"),
    "consumer cards": lambda: deployment("llama-3.1-8b", "rtx-4090", tensor_parallel=2),
    "first stage": lambda: deployment("llama-3.1-8b").stages(2)[0],
    "last stage": lambda: deployment("llama-3.1-8b").stages(2)[1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_add_up_however_the_model_is_spread(layout):
    timer = StepTimer(LAYOUTS[layout](), 1024)
    prompts = prompt_chunks(timer.windows, 700, 1024)
    decoding = [arrays(decode(seqs, 900, q, timer.windows)) for seqs, q in ((8, 1), (9, 1), (33, 4))]
    decoded = {name: getattr(decoding[0], name) for name in ("decode_seqs", "query_len", "decode_kv_tokens")}
    for steps in (*decoding, prompts, prompts._replace(**decoded)):
        kernels = running(timer.kernels(steps))
        costs = timer.costs(steps)
        assert sum(kernel.step_s for kernel in kernels) == pytest.approx(costs.device_s[0], rel=1e-12)
        assert sum(kernel.times * kernel.flops for kernel in kernels) == pytest.approx(costs.flops[0], rel=1e-12)
        links = [kernel for kernel in kernels if kernel.family == "collective"]
        assert sum(kernel.step_s for kernel in links) == pytest.approx(costs.interconnect_s[0])
        assert all(kernel.bound in ("compute", "memory", "latency", "interconnect") for kernel in kernels)
        for kernel in kernels:
            if kernel.family == "gemm":
                assert kernel.seconds >= kernel.flops / 2e15
                assert kernel.seconds >= kernel.bytes / 4.9e12


GOLDEN = scenarios()
TIMERS = {}


@pytest.mark.parametrize(("model", "chips", "seen"), [("minimax-m2", 8, 62), ("minimax-m2", 1, 0), ("qwen3-32b", 8, 0)])
def test_norms_over_whole_queries_add_up_what_chips_have(model, chips, seen):
    """MiniMax's norm is over all heads, of which a chip has some; norms over one head need no other chip."""
    result = running(StepTimer(deployment(model, tensor_parallel=chips), 512).kernels(arrays(decode(8, 900))))
    reduced = [one for one in result if one.name == "query and key norms all-reduce"]
    assert sum(one.times for one in reduced) == seen


def golden_timer(name):
    if name not in TIMERS:
        TIMERS[name] = build_replica(scenario_from(GOLDEN[name], name), 0).main.timer
    return TIMERS[name]


def as_recorded(timer, work):
    """What the engine repeats of a recording of the timing model."""
    engine = engine_module(interpreted=True)
    step = engine.Work(timer.windows)
    for name, value in work._asdict().items():
        if isinstance(value, tuple):
            getattr(step, name)[:] = array("q", value)
        else:
            setattr(step, name, value)
    return engine.RecordedPrices(timer).seconds(step, None)


def one_price(timer, work):
    """The list of a step, its costs and its seconds give one figure; what the engine repeats, the same to the bit."""
    assert as_recorded(timer, work) == timer.seconds(work)
    steps = arrays(work)
    listed = float(Costs.of(timer.kernels(steps), 1).device_s[0])
    costs = timer.costs(steps)
    assert float(costs.device_s[0]) == pytest.approx(listed, rel=1e-9)
    assert timer.seconds(work) == pytest.approx(float((costs.device_s + costs.host_s)[0]), rel=1e-9)
    assert float(costs.sol_s[0]) <= listed
    assert 0.0 <= float((costs.extrapolated_s + costs.datasheet_s)[0]) <= listed * (1 + 1e-9)


@st.composite
def batches(draw, query_len, windows, most):
    """Prompt chunks behind cached tokens beside sequences of unequal contexts, within a step's tokens."""
    chunks = draw(st.lists(st.tuples(st.integers(1, most // 8), st.integers(0, 20_000)), max_size=3))
    seqs = draw(st.integers(0, min(100, most // 2 // query_len)))
    base, spread = draw(st.integers(query_len, 4000)), draw(st.integers(0, 30_000))
    contexts = [base + (spread if place == 0 else 0) for place in range(seqs)]
    verified = draw(st.sampled_from([1, query_len]))
    return StepWork(
        len(chunks),
        sum(n for n, _ in chunks),
        tuple(sum(causal_pairs(n, c, w) for n, c in chunks) for w in windows),
        tuple(sum(keys_read(n + c, n, w) for n, c in chunks) for w in windows),
        len(chunks),
        tuple(sum(keys_read(n + c + 1, 1, w) for n, c in chunks) for w in windows),
        seqs,
        verified,
        tuple(sum(keys_read(c, verified, w) for c in contexts) for w in windows),
        max(contexts, default=0),
        float(spread) / 2 if seqs else 0.0,
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_list_costs_and_seconds_are_one_price(name):
    """Three hundred random steps over the golden scenarios, to 1e-9."""
    timer = golden_timer(name)
    query_len = 1 if timer.drafter is None else 5

    @settings(max_examples=30, deadline=None)
    @given(batches(query_len, timer.windows, timer.target.max_tokens))
    def check(work):
        if work.prefill_tokens + work.decode_seqs:
            one_price(timer, work)

    check()


SPREADS = (
    {},
    {"tensor_parallel": 4},
    {"tensor_parallel": 2, "speculative_parallel": 2},
    {"tensor_parallel": 2, "pipeline_parallel": 2},
    {"tensor_parallel": 4, "expert_parallel": 4},
    {"tensor_parallel": 4, "attention_data_parallel": 2, "expert_parallel": 4},
    {"tensor_parallel": 4, "attention_data_parallel": 4, "expert_parallel": 4},
)
DRAFTS = ("none", "draft-model", "remote", "ngram", "medusa", "eagle3", "mtp", "parallel-draft", "sequential head")


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_list_costs_and_seconds_are_one_price_over_the_catalogue(data):
    """Random steps of random models, chips, libraries, layouts and drafters."""
    spread = data.draw(st.sampled_from(SPREADS), "spread")
    method = data.draw(st.sampled_from(DRAFTS), "method")
    framework = data.draw(st.sampled_from(["vllm", "sglang", "trtllm", "tt-metal", "generic"]), "framework")
    fields = plain_data(
        data.draw(st.sampled_from(architecture_names()), "model"),
        data.draw(st.sampled_from(["gb300", "h200-sxm", "a100-sxm-80gb", "n150"]), "chip"),
        hardware=spread,
        engine={"framework": framework, "max_num_seqs": 128, "cuda_graphs": data.draw(st.booleans(), "graphs")},
    )
    if "speculative_parallel" in spread:
        prefill = data.draw(st.sampled_from(["context-parallel", "replicated"]), "prefill")
        fields["attention_speculation"] = {"hit_rate": 0.8, "prefill": prefill}
    if method != "none":
        chip = {"chip": "l40s"} if method == "remote" else {}
        draft = {"draft": {"model": "llama-3.2-1b"} | chip} if method in ("draft-model", "remote") else {}
        draft = {"draft": {"markov_rank": 64}} if method == "sequential head" else draft
        method = {"remote": "draft-model", "sequential head": "parallel-draft"}.get(method, method)
        fields["speculation"] = {"method": method, "num_speculative_tokens": 4, "acceptance": {"alpha": 0.7}} | draft
    try:
        timer = build_replica(scenario_from(fields, "test"), 0).main.timer
    except ForerunError:
        assume(False)
    work = data.draw(batches(1 if method == "none" else 5, timer.windows, timer.target.max_tokens), "work")
    assume(work.prefill_tokens + work.decode_seqs)
    one_price(timer, work)


@pytest.mark.parametrize("model", architecture_names())
def test_groups_that_compute_prompts_together_exchange_the_keys_of_every_kind_of_attention(model):
    """Gemma-4-31B has layers of two shapes; each is exchanged with its own."""
    hardware = {"tensor_parallel": 2, "speculative_parallel": 2}
    fields = plain_data(model, "gb300", hardware=hardware, attention_speculation={"hit_rate": 0.8})
    with suppress(ForerunError):
        timer = build_replica(scenario_from(fields, "test"), 0).main.timer
        chunk = prompt_chunks(timer.windows, 2048, 8192)
        one_price(
            timer, StepWork(*(tuple(int(n[0]) for n in f) if isinstance(f, tuple) else int(f[0]) for f in chunk[:9]))
        )


@pytest.mark.parametrize("context", [30_000, 100_000])
def test_one_long_sequence_among_many_on_a_consumer_card(context):
    """The longest of 64 sequences ends alone: the list says so too, not only the sum."""
    timer = StepTimer(deployment(chip="rtx-4090"), 8192)
    work = StepWork(0, 0, (0,), (0,), 0, (0,), 64, 1, (63 * 500 + context,), context, float(context - 500))
    listed = sum(kernel.step_s for kernel in running(timer.kernels(arrays(work))))
    assert timer.seconds(work) == pytest.approx(listed, rel=1e-9)
    assert listed > 1.5 * timer.seconds(work._replace(tail_kv=0.0))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 9), st.integers(20, 90_000)), min_size=1, max_size=9))
def test_many_steps_are_their_steps(rows):
    timer = golden_timer("experts-two-replicas").target
    seqs, query_len, context = (np.array(column) for column in zip(*rows, strict=True))
    zero = 0 * seqs
    many = StepWork(zero, zero, (zero,), (zero,), zero, (zero,), seqs, query_len, (seqs * context,))
    costs = timer.costs(many)
    together = (costs.device_s + costs.host_s).tolist()
    for row, (n, q, kv) in enumerate(rows):
        single = StepWork(0, 0, (0,), (0,), 0, (0,), n, q, (n * kv,))
        assert timer.seconds(single) == pytest.approx(together[row], rel=1e-9)


@given(st.integers(1, 5000), st.integers(1, 2000), st.sampled_from([None, 64, 4096]))
def test_chunks_of_a_prompt_are_the_whole_prompt(prompt, budget, window):
    chunks = prompt_chunks((window,), prompt, budget)
    assert chunks.prefill_tokens.sum() == prompt
    assert chunks.prefill_tokens.max() <= budget
    assert chunks.prefill_pairs[0].sum() == causal_pairs(prompt, 0, window)
    assert chunks.sampled_prefills.sum() == 1


@given(st.integers(1, 300), st.integers(1, 9), st.integers(9, 9000), st.sampled_from([None, 512]))
def test_decode_steps_read_every_sequence(seqs, query_len, context, window):
    steps = decode_steps((window,), np.array([seqs]), query_len, np.array([context]))
    assert steps.decode_kv_tokens[0][0] == seqs * keys_read(context, query_len, window)
    assert steps.prefill_tokens[0] == 0


@pytest.mark.parametrize("model", [name for name in architecture_names() if not name.startswith("opt")])
def test_the_list_does_what_the_architecture_asks_for(model):
    """Two FLOPs for every weight that a token meets, each weight read once: counted independently of the list.

    One token on a chip of unlimited memory; routed experts as many as a token is sent to.
    """
    one = deployment(model, cuda_graphs=False)
    architecture = one.architecture
    active = 0.0
    for group in architecture.layer_groups:
        for tensor in group.layer.tensors(architecture.hidden_size):
            share = group.layer.feed_forward.experts_per_token / tensor.copies if tensor.part == "expert" else 1.0
            active += group.count * tensor.elements * share
    head = architecture.vocab_size * architecture.hidden_size
    timer = StepTimer(one, 8)
    products = [
        kernel
        for kernel in running(timer.kernels(decode_steps(timer.windows, np.array([1]), 1, np.array([100]))))
        if kernel.family in ("gemm", "moe")
    ]
    assert sum(kernel.times * kernel.flops for kernel in products) == pytest.approx(2 * (active + head), rel=0.01)
    assert sum(kernel.times * kernel.bytes for kernel in products) >= 0.5 * (active + head)
    assert all(kernel.seconds >= kernel.sol_s > 0 for kernel in products)


@pytest.mark.parametrize(
    ("seconds", "compute", "memory", "expected"),
    [
        (9.0, 4.0, 3.9, (4.1, 3.9)),  # no overlap: launch 1, and all of both
        (5.0, 4.0, 3.0, (4.0, 0.0)),  # whole overlap: the longer hides the other
        (6.0, 4.0, 3.0, (4.0, 1.0)),
        (3.0, 1.5, 4.0, (0.0, 2.0)),  # a correction made it shorter than its longer part
        (11.0, 3.0, 4.0, (3.0, 7.0)),  # a correction made it longer than both
    ],
)
def test_what_the_longer_of_compute_and_memory_does_not_hide_counts_for_the_other(seconds, compute, memory, expected):
    time = KernelTime(seconds, 1.0, compute, memory, 0.0, 0.0)
    costs = Costs.of([Kernel("experts", "moe", "bf16", 2, time)], 1)
    assert (costs.compute_s[0], costs.memory_s[0]) == pytest.approx([2 * part for part in expected])
    assert costs.device_s[0] == pytest.approx(2 * seconds)


def test_few_streams_of_a_mixture_read_memory_longer_than_they_compute():
    scenario = plain_scenario("gpt-oss-120b", "h200-sxm", 500, 100, 8, engine={"framework": "vllm"})
    timer = build_run(scenario.with_values({"workload.arrivals": {"max_concurrency": 4}})).main.timer.target
    costs = timer.costs(arrays(decode_step(timer.windows, 4, 1, 800)))
    assert costs.memory_s[0] > 1.2 * costs.compute_s[0]
