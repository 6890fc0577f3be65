"""Memory of a chip, byte by byte: activations, logits, drafters on the same and on other chips, windows, the last
block."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timing_steps import deployment, memory_plan

from forerun.errors import ForerunError
from hwprofiles import load_link
from simulator.running.step_time import StepTime
from simulator.timing import RemoteDrafter, SequentialDrafter, StepTimer, fit_separate_processes
from simulator.timing.memory import activation_bytes, window_blocks, window_bytes

GB = 1e9
SMALL_STEPS = {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.9}
WHOLE_EXPERTS = {"release": "0.19.1", "gpu_memory_utilization": 0.9}
H100, H200 = (deployment(chip=name).chip.memory.capacity_bytes for name in ("h100-sxm", "h200-sxm"))


def bare(model="llama-3.1-8b", chip="h100-sxm", tensor_parallel=1, **changes):
    """A deployment whose engine reserves nothing."""
    one = deployment(model, chip, tensor_parallel, **changes)
    return replace(one, framework=one.framework.model_copy(update={"reserved_bytes": 0.0}))


class TestActivations:
    def test_dense_by_hand(self):
        """Llama-3.1-8B: 2 bytes x tokens x (4 x 4096 + 3 x 14336), logits and softmax in fp32 for sampled rows."""
        one = bare()
        stream = 1000 * (4 * 4096 + 3 * 14336) * 2
        assert activation_bytes(one, 1000, 0) == stream
        assert activation_bytes(one, 1000, 7) == stream + 2 * 7 * 128_256 * 4
        assert activation_bytes(one, 0, 1) == 2 * 128_256 * 4
        shared = bare(tensor_parallel=4)
        assert activation_bytes(shared, 1000, 0) == 1000 * (4 * 4096 + 3 * 14336 / 4) * 2

    def test_what_the_engine_reserves_comes_on_top(self):
        one = deployment()
        assert activation_bytes(one, 10, 3) - activation_bytes(bare(), 10, 3) == one.framework.reserved_bytes > 0

    def test_experts_by_hand(self):
        """DeepSeek-V3 on eight chips: 8 routed experts of 2048 and one shared, an operand and an output for each."""
        one = bare("deepseek-v3", "h200-sxm", 8)
        routed = 3 * (8 * 2048 + 2048) / 8 + 2 * 8 * 7168
        assert activation_bytes(one, 100, 0) == pytest.approx(100 * (4 * 7168 + routed) * 2)
        mixtral = bare("mixtral-8x7b", "h200-sxm", 2)
        per_token = 4 * 4096 + 3 * 2 * 14336 / 2 + 2 * 2 * 4096
        assert activation_bytes(mixtral, 100, 0) == pytest.approx(100 * per_token * 2)

    @pytest.mark.parametrize(
        ("model", "chip", "chips", "engine", "fields", "tokens"),
        [
            ("qwen2.5-7b", "h100-sxm", 1, {"release": "0.15.1"} | SMALL_STEPS, {}, 1_045_632),
            ("llama-3.1-70b", "h100-sxm", 4, {"release": "0.15.1"} | SMALL_STEPS, {}, 484_016),
            ("yi-34b", "h100-sxm", 2, {"release": "0.15.1"} | SMALL_STEPS, {}, 332_688),
            ("nvidia/DeepSeek-R1-0528-FP4", "b200-sxm", 4, WHOLE_EXPERTS, {"kv_cache_dtype": "fp8"}, 1_901_888),
            ("nvidia/DeepSeek-R1-0528-FP4", "b200-sxm", 8, WHOLE_EXPERTS, {"kv_cache_dtype": "fp8"}, 3_305_920),
            ("Qwen/Qwen3-235B-A22B-FP8", "h100-sxm", 4, {"release": "0.9.2"}, {}, 178_880),
        ],
    )
    def test_kv_memory_that_vllm_prints_as_it_starts(self, model, chip, chips, engine, fields, tokens):
        """Dense models and DeepSeek-R1 within 2 %; 8 GiB beside 55 of weights within 12 %.

        Source: train15_workloads of inference-sim (vLLM 0.15.1), logs of InferenceX (0.19.1), vllm-project/vllm#21348.
        """
        step = StepTime(
            model, chip, tensor_parallel=chips, framework="vllm", engine=engine, **fields,
            hardware={"expert_parallel": chips} if engine is WHOLE_EXPERTS else {},
        )  # fmt: skip
        plan = step.memory()
        assert plan.num_blocks * plan.block_size == pytest.approx(
            tokens, rel=0.12 if model.startswith("Qwen/") else 0.02
        )

    def test_limits_are_those_of_one_attention_group(self):
        """Four groups with a budget each send their tokens to the experts at once: a chip's share is that of one."""
        single = bare("mixtral-8x7b", "h200-sxm")
        groups = replace(single, attention_data_parallel=4, expert_parallel=4)
        assert activation_bytes(groups, 8, 9) == activation_bytes(single, 8, 9)

    def test_no_stage_but_the_last_has_rows_of_logits(self):
        first, last = bare().stages(2)
        assert activation_bytes(first, 8, 9) == activation_bytes(first, 8, 0)
        assert activation_bytes(last, 8, 9) > activation_bytes(last, 8, 0)


class TestBlocks:
    @settings(max_examples=40, deadline=None)
    @given(st.floats(0.3, 1.0), st.integers(1, 64), st.integers(1, 16384), st.integers(1, 512))
    def test_all_that_is_left_is_blocks(self, share, block_size, max_tokens, sampled):
        """weights + activations + blocks fit the budget, and one block more would not."""
        one = bare()
        limits = {"block_size": block_size, "max_tokens": max_tokens, "max_sampled": sampled}
        plan = memory_plan(one, gpu_memory_utilization=share, **limits)
        block = plan.kv_bytes_per_token * block_size
        used = plan.weight_bytes + plan.activation_bytes + plan.num_blocks * block
        assert used <= share * H100 < used + block
        assert plan.activation_bytes == activation_bytes(one, max_tokens, sampled)
        assert (plan.capacity_bytes, plan.block_size, plan.overridden) == (H100, block_size, False)

    def test_a_drafter_beside_it_takes_its_weights_and_its_keys(self):
        one, draft = bare(), deployment("llama-3.2-1b")
        plan = memory_plan(one, draft)
        left = 0.9 * H100 - one.weight_bytes - draft.weight_bytes - activation_bytes(one, 2048, 64)
        assert plan.num_blocks == int(left // (16 * (one.kv_bytes_per_token + draft.kv_bytes_per_token)))
        assert plan.draft_weight_bytes == draft.weight_bytes

    def test_the_last_block_is_the_limit(self):
        """Room for exactly one block is enough; a byte less is refused."""
        one = bare("llama-3.2-1b")
        need = one.weight_bytes + activation_bytes(one, 16, 1) + 16 * one.kv_bytes_per_token
        limits = {"max_tokens": 16, "max_sampled": 1}
        assert memory_plan(one, gpu_memory_utilization=(need + 1) / H100, **limits).num_blocks == 1
        with pytest.raises(ForerunError, match=r"does not fit 1 x h100-sxm: per chip 2\.5 GB weights \+ \d\.\d GB act"):
            memory_plan(one, gpu_memory_utilization=(need - 1) / H100, **limits)

    def test_the_refusal_adds_up(self):
        """Weights 141.1 GB of 76.4 GB, which is 90 % of 85 GB."""
        with pytest.raises(ForerunError) as caught:
            memory_plan(bare("llama-3.1-70b"), deployment("llama-3.2-1b"))
        activations = activation_bytes(bare("llama-3.1-70b"), 2048, 64) / GB
        assert (
            f"per chip 141.1 GB weights + 2.5 GB drafter + {activations:.1f} GB activations against "
            f"{0.9 * H100 / GB:.1f} GB (90% of {H100 / GB:.0f} GB)" in str(caught.value)
        )

    def test_a_measured_count_overrides_where_the_weights_fit_at_all(self):
        one = bare()
        tight = {"gpu_memory_utilization": 0.1, "blocks": 50}
        plan = memory_plan(one, **tight)
        assert (plan.num_blocks, plan.overridden) == (50, True)
        with pytest.raises(ForerunError, match="does not fit"):
            memory_plan(bare("llama-3.1-70b"), **tight)

    def test_stages_and_groups_count_together(self):
        """Keys of a token lie on every chip of every stage; each attention group has blocks of its own."""
        one = bare(tensor_parallel=2)
        for stages in (1, 2, 4):
            plan = memory_plan(one, pipeline_parallel=stages)
            assert plan.replica_kv_bytes_per_token == pytest.approx(2 * one.kv_bytes_per_token)
            assert plan.kv_bytes_per_token == pytest.approx(one.kv_bytes_per_token / stages)
        groups = replace(bare("mixtral-8x7b", "h200-sxm"), attention_data_parallel=4, expert_parallel=4)
        plan = memory_plan(groups)
        left = 0.9 * H200 - groups.weight_bytes - activation_bytes(groups, 2048, 64)
        assert plan.num_blocks == 4 * int(left // (16 * groups.kv_bytes_per_token))

    def test_of_equal_stages_the_heaviest_is_shown(self):
        """A measured count is the same on all; the last stage holds the LM head, the first the embedding."""
        for model, draft in (("llama-3.1-8b", None), ("llama-3.1-8b", deployment("llama-3.2-1b"))):
            one = bare(model)
            heaviest = max(
                stage.weight_bytes + (draft.weight_bytes if draft and stage.last_stage else 0.0)
                for stage in one.stages(3)
            )
            plan = memory_plan(one, draft, blocks=100, pipeline_parallel=3)
            assert plan.weight_bytes + plan.draft_weight_bytes == heaviest

    def test_the_stage_that_cannot_hold_its_part_is_named(self):
        with pytest.raises(ForerunError, match=r"\(a pipeline stage of 40 layers\)"):
            memory_plan(bare("llama-3.1-70b", "rtx-4090"), pipeline_parallel=2)


class TestApart:
    """A drafter on chips of its own: they hold its weights, its activations and as many blocks as fit beside them."""

    def drafter(self, model="llama-3.2-1b", chip="l4"):
        step = StepTimer(bare(model, chip), 64)
        inner = SequentialDrafter(step, 3, (1, 1), step.deployment.weight_bytes, step.deployment.kv_bytes_per_token)
        return RemoteDrafter(inner, load_link("infiniband-ndr"))

    def test_the_smaller_of_both_counts(self):
        """On an L4 the 1B drafter has fewer blocks than an 8B target on an H200; on an H100 more."""
        target = memory_plan(bare("llama-3.1-8b", "h200-sxm"))
        for chip, shorter in (("l4", True), ("h100-sxm", False)):
            drafter = self.drafter(chip=chip)
            one = drafter.deployment
            left = 0.8 * one.chip.memory.capacity_bytes - one.weight_bytes - activation_bytes(one, 64, 0)
            custom = int(left // (16 * one.kv_bytes_per_token))
            fitted = fit_separate_processes(target, drafter, gpu_memory_utilization=0.8, max_tokens=64)
            assert (custom < target.num_blocks) == shorter
            assert fitted.num_blocks == min(custom, target.num_blocks)
            assert fitted.draft_weight_bytes == 0.0

    def test_a_cache_of_fixed_size_never_limits_the_blocks(self):
        """It is held with the weights, and no token takes more: any plan of the target stands."""
        target, drafter = memory_plan(bare()), self.drafter()
        fixed = replace(drafter, inner=replace(drafter.inner, kv_bytes_per_token=0.0))
        fitted = fit_separate_processes(target, fixed, gpu_memory_utilization=0.8, max_tokens=64)
        assert fitted.num_blocks == target.num_blocks
        with pytest.raises(ForerunError, match="does not fit 1 x l4"):
            fit_separate_processes(target, fixed, gpu_memory_utilization=0.001, max_tokens=64)

    def test_one_block_is_enough_and_none_is_refused(self):
        target, drafter = memory_plan(bare()), self.drafter()
        one = drafter.deployment
        need = one.weight_bytes + activation_bytes(one, 64, 0) + 16 * one.kv_bytes_per_token
        capacity = one.chip.memory.capacity_bytes
        fitted = fit_separate_processes(target, drafter, gpu_memory_utilization=(need + 1) / capacity, max_tokens=64)
        assert fitted.num_blocks == 1
        for budget in (need - 1, 1.0):
            with pytest.raises(
                ForerunError, match=r"llama-3.2-1b does not fit 1 x l4: 2\.5 GB weights against"
            ) as caught:
                fit_separate_processes(target, drafter, gpu_memory_utilization=budget / capacity, max_tokens=64)
            assert f"against {budget / GB:.1f} GB per chip" in str(caught.value)


class TestWindows:
    """gpt-oss-20b: half of its layers keep 128 tokens."""

    ONE = bare("gpt-oss-20b", "h200-sxm")
    SIZE = ONE.kv_bytes_per_token / 2

    def test_every_running_sequence_keeps_its_window_and_a_block(self):
        for seqs in (1, 10, 300):
            result = window_bytes(self.ONE, 50 * GB, self.SIZE, 2048, seqs, 16)
            assert result == pytest.approx(seqs * (128 + 16) * self.SIZE + 2048 * self.SIZE)

    def test_no_more_sequences_than_fit(self):
        """Each with its window, a block and as many tokens in the other layers: half of all for half of the layers."""
        left = 0.2 * GB
        assert window_bytes(self.ONE, left, self.SIZE, 1, 10**6, 16) == pytest.approx(left / 2)

    @pytest.mark.parametrize("tokens", [144, 1424, 14384])
    def test_longer_sequences_leave_the_windows_less(self, tokens):
        """As many windows as sequences of that length fit beside them, so that neither kind of layer wants for memory.

        Half of the layers each: windows take (128 + 16) / (tokens + 16) of what the other layers do.
        """
        left = 0.2 * GB
        result = window_bytes(self.ONE, left, self.SIZE, 1, 10**6, 16, tokens)
        assert result / (left - result) == pytest.approx((128 + 16) / (tokens + 16))

    @pytest.mark.parametrize("seqs", [16, 64, 256])
    def test_short_contexts_have_the_blocks_that_they_would_have_without_windows(self, seqs):
        """Of gemma-3-27b 52 layers of 62 keep 1,024 tokens: 20 GB hold 2,500 blocks of all layers, not 80."""
        one = deployment("gemma-3-27b", "h100-sxm")
        plan = memory_plan(one, max_tokens=8192, max_sampled=seqs)
        left = 0.9 * H100 - plan.weight_bytes - plan.activation_bytes
        assert left > 19 * GB
        assert plan.num_blocks >= int(left // (16 * one.kv_bytes_per_token)) > 2000

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 2000), st.integers(1, 20_000), st.floats(0.01, 60.0))
    def test_more_sequences_never_leave_more_blocks(self, seqs, tokens, gigabytes):
        one, more = (window_bytes(self.ONE, gigabytes * GB, self.SIZE, tokens, n, 16) for n in (seqs, seqs + 1))
        assert one <= more

    def test_a_step_takes_half_at_most_and_a_block_is_left(self):
        left = 100 * self.SIZE
        assert window_bytes(self.ONE, left, self.SIZE, 10**6, 1, 16) == pytest.approx(left / 2)
        for seqs in (1, 10**6):
            for tokens in (1, 10**6):
                for size in (17, 60, 400, 10**4):
                    assert (
                        window_bytes(self.ONE, size * self.SIZE, self.SIZE, tokens, seqs, 16) <= (size - 16) * self.SIZE
                    )

    def test_none_without_windows_or_without_room(self):
        assert window_bytes(bare(), 50 * GB, 1e5, 2048, 10, 16) == 0.0
        assert window_bytes(self.ONE, 0.0, self.SIZE, 2048, 10, 16) == 0.0
        assert window_bytes(self.ONE, -1.0, self.SIZE, 2048, 10, 16) == 0.0

    def test_each_group_has_its_own_sequences(self):
        groups = replace(self.ONE, attention_data_parallel=4, expert_parallel=4)
        grouped, single = (window_bytes(one, 50 * GB, self.SIZE, 1, 9, 16) for one in (groups, self.ONE))
        assert grouped == single


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        ("gpt-oss-120b", 1),
        ("gemma-3-27b", 6),
        ("gemma-4-31b", 10),
        ("mimo-v2-flash", 10),
        ("qwen3-32b", 0),
        ("phi-3-mini-4k", 0),
    ],
)
def test_groups_of_windowed_layers(model, blocks):
    """Gemma 3 27B: 52 layers with a window in groups of the 10 without, the last one padded; Gemma 4's windowed
    layers cache twice the bytes of the others, as do MiMo's, 39 in groups of 9.
    """
    assert window_blocks(deployment(model, "h200-sxm", 1)) == pytest.approx(blocks)
