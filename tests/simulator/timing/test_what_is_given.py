"""Descriptions of engines and layouts: what they come to by hand, and what no machine can be refused."""

from dataclasses import replace

import pytest
from pydantic import TypeAdapter, ValidationError
from timing_steps import arrays, decode, deployment

from forerun.errors import ForerunError
from hwprofiles import load_chip
from simulator.timing import (
    DraftOverhead,
    Framework,
    HardwareConfig,
    StepTimer,
    StepWork,
    layer_weight_bytes,
    load_draft_overhead,
    load_framework,
)


@pytest.mark.parametrize("model", [Framework, DraftOverhead])
def test_times_and_sizes_are_not_negative(model):
    """Zero and a nanosecond are fine, less than nothing is not."""
    for name, field in model.model_fields.items():
        if field.annotation in (float, int):
            kind = TypeAdapter(field.rebuild_annotation())
            largest = 1.0 if any(getattr(limit, "le", None) == 1 for limit in field.metadata) else 3.0
            for good in (0, 1) if field.annotation is int else (0.0, 1e-9, 0.5, largest):
                kind.validate_python(good)
            with pytest.raises(ValidationError):
                kind.validate_python(-1 if field.annotation is int else -1e-9)
            assert name


@pytest.mark.parametrize(("replicas", "good"), [(0, False), (-1, False), (1, True), (10_000, True), (10_001, False)])
def test_replicas_are_counted_from_one(replicas, good):
    if good:
        assert HardwareConfig(chip="h100-sxm", replicas=replicas).replicas == replicas
    else:
        with pytest.raises(ValidationError, match="replicas"):
            HardwareConfig(chip="h100-sxm", replicas=replicas)


def test_chips_of_a_copy_multiply():
    plain = HardwareConfig(chip="h100-sxm")
    assert (plain.chips_per_stage, plain.chips_per_replica, plain.replicas) == (1, 1, 1)
    spread = HardwareConfig(chip="h100-sxm", tensor_parallel=2, attention_data_parallel=3, pipeline_parallel=5)
    assert (spread.chips_per_stage, spread.chips_per_replica) == (6, 30)


def test_graphs_are_captured_unless_refused():
    """A step outside graphs waits for every launch of every layer; so do prompts where decoding alone is captured."""
    usual = deployment("llama-3.2-1b")
    slow = usual.framework.model_copy(update={"eager_launch_s": 1e-3})
    usual = replace(usual, framework=slow)
    refused = replace(usual, cuda_graphs=False)
    work = decode(1, 100)
    assert StepTimer(usual, 64).seconds(work) < StepTimer(refused, 64).seconds(work)
    launches = slow.kernels_per_layer * 16 * 1e-3
    assert StepTimer(refused, 64).seconds(work) == pytest.approx(launches)
    empty = (0,)
    prompt = StepWork(1, 9, (45,), (9,), 1, (10,), 0, 1, empty)
    for steps, waits in (("all", False), ("decode", True)):
        one = replace(usual, framework=slow.model_copy(update={"captured_steps": steps}))
        timer = StepTimer(one, 64)
        assert timer.seconds(work) < launches
        assert (timer.seconds(prompt) == pytest.approx(launches)) == waits
        assert bool(timer.costs(arrays(prompt)).host_s.any()) == waits


class TestFrameworks:
    """An engine's host costs under choices: what drives it, how it samples, when it schedules, on what chip."""

    ONE = load_framework("vllm").model_copy(
        update={
            "step_s": 5e-4,
            "per_sequence_s": 4e-6,
            "scheduling_s": 2e-4,
            "scheduling_per_sequence_s": 3e-6,
            "overlapped_s": 1e-4,
            "overlapped_per_sequence_s": 1e-6,
            "schedules_ahead": False,
            "sorted_logit_s": 1e-10,
            "api_server_s": 1.0,
            "api_server_work_s": 2.0,
            "tokenisation_per_token_s": 3.0,
            "per_prompt_s": 4.0,
        }
    )

    def times(self, one):
        return (one.step_s, one.per_sequence_s, one.overlapped_s, one.overlapped_per_sequence_s)

    def test_scheduling_moves_beside_the_device_and_back(self):
        ahead = self.ONE.scheduled(True)
        assert self.times(ahead) == pytest.approx((3e-4, 1e-6, 3e-4, 4e-6))
        assert ahead.schedules_ahead
        assert self.times(ahead.scheduled(False)) == pytest.approx(self.times(self.ONE))
        for same in (None, False):
            assert self.ONE.scheduled(same) is self.ONE

    def test_no_time_becomes_negative(self):
        little = self.ONE.model_copy(update={"step_s": 1e-4, "per_sequence_s": 1e-6})
        assert self.times(little.scheduled(True)) == pytest.approx((0.0, 0.0, 3e-4, 4e-6))
        other = self.ONE.model_copy(update={"schedules_ahead": True})
        assert self.times(other.scheduled(False)) == pytest.approx((7e-4, 7e-6, 0.0, 0.0))

    def test_without_a_server_nothing_is_taken_in(self):
        plain = self.ONE.without_api_server()
        for name in ("api_server_s", "api_server_work_s", "tokenisation_per_token_s", "per_prompt_s"):
            assert getattr(plain, name) == 0
        assert (plain.overlapped_per_sequence_s, plain.overlapped_s) == (0, self.ONE.overlapped_s)
        assert (plain.step_s, plain.per_sequence_s) == (self.ONE.step_s, self.ONE.per_sequence_s)

    def test_sorting_takes_every_logit_of_every_sequence(self):
        assert self.ONE.sorting(128_256).per_sequence_s == pytest.approx(4e-6 + 128_256e-10)
        assert self.ONE.sorting(128_256).step_s == self.ONE.step_s

    def test_a_chips_own_software_comes_on_top(self):
        for name in ("n150", "h100-sxm"):
            host = load_chip(name).host
            on = self.ONE.on(load_chip(name))
            assert on.step_s == pytest.approx(5e-4 + host.step_s)
            assert on.per_sequence_s == pytest.approx(4e-6 + host.sequence_s)
        assert load_chip("n150").host.step_s > 0

    def test_names_and_sources(self):
        with pytest.raises(ForerunError, match=r"no framework 'sglan'; did you mean 'sglang'. \(one of generic, vllm"):
            load_framework("sglan")
        with pytest.raises(ForerunError, match=r"no drafter 'eagel3'; did you mean 'eagle"):
            load_draft_overhead("vllm", "eagel3")
        assert load_draft_overhead("an engine without entries", "eagle3") == load_draft_overhead("default", "eagle3")


class TestDeployments:
    def test_shares_of_tensors(self):
        """Columns and rows are divided and rounded up; experts lie whole on their chips; the rest is on all."""
        one = deployment("llama-3.1-8b", tensor_parallel=8)
        by_name = {gemm.name: gemm for gemm in one.gemms(one.architecture.layer_groups[0].layer)}
        assert (by_name["qkv_proj"].n, by_name["qkv_proj"].k) == (6144 // 8, 4096)
        assert (by_name["o_proj"].n, by_name["o_proj"].k) == (4096, 4096 // 8)
        odd = replace(one, architecture=replace(one.architecture, hidden_size=4100))
        assert {g.name: g for g in odd.gemms(odd.architecture.layer_groups[0].layer)}["o_proj"].n == 4100

    def test_weights_by_hand(self):
        """Llama-3.1-8B on two chips: half of every matrix and of both tables; norms are too small to count."""
        one = deployment("llama-3.1-8b", tensor_parallel=2)
        matrices = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
        assert one.layer_weight_bytes == 2 * 32 * matrices / 2
        tables = 2 * 128_256 * 4096 / 2
        assert one.weight_bytes == one.layer_weight_bytes + 2 * tables
        tied = deployment("llama-3.2-1b")
        assert tied.weight_bytes - tied.layer_weight_bytes == 2 * 128_256 * 2048

    def test_stages_hold_the_tables_they_use(self):
        first, middle, last = deployment("llama-3.1-8b").stages(3)
        table = 2 * 128_256 * 4096
        assert [s.weight_bytes - s.layer_weight_bytes for s in (first, middle, last)] == [table, 0, table]
        with pytest.raises(ForerunError, match="has 16 layers, not enough for 17 stages; use at most 16"):
            deployment("llama-3.2-1b").stages(17)
        assert len(deployment("llama-3.2-1b").stages(16)) == 16

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"tensor_parallel": 4, "expert_parallel": 3}, "3 does not divide the 4 chips of a stage"),
            (
                {"tensor_parallel": 16, "expert_parallel": 16},
                r"mixtral-8x7b has 8 experts, fewer than 16 chips",
            ),
            ({"tensor_parallel": 3}, r"32 heads of mixtral-8x7b do not divide by 3 .one of 1, 2, 4, 8, 16, 32\)"),
            ({"expert_routing": "sideways"}, r"hardware\.expert_routing: "),
        ],
    )
    def test_layouts_that_do_not_divide(self, changes, words):
        with pytest.raises(ForerunError, match=words):
            deployment("mixtral-8x7b", "h200-sxm", **changes)

    def test_attention_of_one_chip(self):
        shape = deployment("llama-3.1-8b", tensor_parallel=4).attention_shape(LLAMA_ATTENTION)
        assert (shape.num_heads, shape.num_kv_heads, shape.qk_dim, shape.v_dim) == (8, 2, 128, 128)
        assert shape.kv_bytes_per_token == 2 * 2 * 128 * 2
        spread = deployment("llama-3.1-8b", tensor_parallel=16).attention_shape(LLAMA_ATTENTION)
        assert (spread.num_heads, spread.num_kv_heads, spread.kv_bytes_per_token) == (2, 1, 2 * 128 * 2)
        latent = deployment("deepseek-v3", "h200-sxm", 8)
        shape = latent.attention_shape(latent.architecture.layer_groups[0].layer.attention)
        assert (shape.num_heads, shape.num_kv_heads, shape.qk_dim, shape.v_dim) == (16, 1, 576, 512)

    @pytest.mark.parametrize(("framework", "widths"), [("trtllm", (16, 192, 128)), ("llama.cpp", (1, 576, 512))])
    def test_prompts_multiply_the_latent_out(self, framework, widths):
        """MLA decodes on the latent, and its prompt kernels see whole heads: as they were measured; llama.cpp's not."""
        one = deployment("deepseek-v3", "h200-sxm", 8, framework=framework, cuda_graphs=False)
        shape = one.attention_shape(one.architecture.layer_groups[0].layer.attention)
        prompts = shape.of_prompts
        assert (prompts.num_kv_heads, prompts.qk_dim, prompts.v_dim) == widths
        assert prompts.of_prompts == prompts
        assert prompts.kv_bytes_per_token == 2 * (16 * (192 + 128) if framework == "trtllm" else 576)
        step = StepWork(1, 1024, (1024 * 1025 // 2,), (1024,), 1, (1024,), 0, 1, (0,))
        kernels = {kernel.name: kernel for kernel in StepTimer(one, 2048).kernels(arrays(step))}
        flops = 2 * 16 * (1024 * 1025 / 2) * sum(widths[1:])
        assert kernels["prefill attention"].flops == pytest.approx(flops)

    def test_dtypes_of_parts(self):
        wide = deployment("llama-3.2-1b", weights="fp32")
        assert (wide.compute_dtype, wide.activation_bytes) == ("fp32", 4)
        usual = deployment("llama-3.2-1b", weights="fp8")
        assert (usual.compute_dtype, usual.activation_bytes) == ("bf16", 2)
        assert usual.weight_dtypes["lm_head"] == usual.weight_dtypes["embedding"] == "bf16"
        assert set(wide.weight_dtypes.values()) == {"fp32"}

    def test_a_drafters_own_tables(self):
        one = deployment("llama-3.2-1b", tensor_parallel=2)
        bare = layer_weight_bytes(one, own_lm_head=False)
        assert bare == one.layer_weight_bytes
        assert layer_weight_bytes(one, own_lm_head=True) - bare == 2 * 128_256 * 2048 / 2
        assert layer_weight_bytes(one, own_lm_head=False, fused_hidden_states=3) - bare == 2 * 3 * 2048 * 2048


LLAMA_ATTENTION = deployment("llama-3.1-8b").architecture.layer_groups[0].layer.attention
