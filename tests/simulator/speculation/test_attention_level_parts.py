"""Parts of a layer under attention-level speculation, each by hand, and what the event model writes down."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from simulator.running.build import build_replica
from simulator.speculation.attention_level import (
    READINGS,
    LayerTimes,
    SyncParts,
    expected_pass_seconds,
    mechanism_costs,
    simulate_pass,
)
from simulator.speculation.attention_level.alspec_config import AttentionSpeculationConfig
from simulator.speculation.attention_level.consistency import (
    compare_layouts,
    consistency_set,
    crossover_context,
    group_layer,
)
from simulator.speculation.attention_level.overlap import SpeculativeAttention, rotated_width
from simulator.speculation.attention_level.parameters import Parameter
from simulator.timing import StepTimer

SET = consistency_set("n150-llama-3.1-8b")
COSTS = {"hit_rate": 0.5, "send_s": 4e-6, "verify_s": 3e-6, "sync_s": 20e-6, "skip_launch_s": 1e-6}


def plain_timer(model="llama-3.1-8b", tensor_parallel=4):
    engine = {"max_num_seqs": 16, "max_num_batched_tokens": 256}
    scenario = plain_scenario(model, hardware={"tensor_parallel": tensor_parallel}, engine=engine)
    return build_replica(scenario, 0).main.timer.target


def speculating(timer, **changed):
    return SpeculativeAttention(AttentionSpeculationConfig.model_validate(COSTS | changed), timer)


@pytest.mark.parametrize(("seqs", "query_len", "context"), [(1, 1, 30_000), (4, 3, 5000), (2, 1, 100)])
def test_a_layer_by_hand(seqs, query_len, context):
    """Llama-3.1-8B on four chips: what stands before attention, what follows, what crosses the link."""
    timer = plain_timer()
    one = timer.deployment
    kernels, rows, keys = one.kernels, seqs * query_len, seqs * context
    layer = one.architecture.layer_groups[0].layer
    shape = one.attention_shape(layer.attention)
    times = speculating(timer).layer_times(shape, seqs, query_len, keys)
    padded = int(one.framework.padded_tokens(np.array([rows]), True)[0])
    tokens = np.array([padded])
    other = timer.layer_costs(layer, tokens).device_s[0]
    qkv = kernels.gemm(tokens, (4096 + 2 * 1024) // 4, 4096, "bf16").seconds[0]
    moved = tokens * (4 * 4096 + 2 * (32 + 8) * 128 / 4) * 2.0
    pre = qkv + kernels.elementwise(moved, launches=np.array([2])).seconds[0]
    assert times.pre_s == pytest.approx(pre, rel=1e-9)
    assert times.pre_s + times.post_s == pytest.approx(other, rel=1e-9)
    exact = kernels.attention_decode(shape, seqs=seqs, q_len=query_len, kv_tokens=keys).seconds
    ends = kernels.attention_decode(shape, seqs=seqs, q_len=query_len, kv_tokens=min(keys, 256.0 * seqs)).seconds
    assert times.exact_s == pytest.approx(exact)
    assert times.window_s == pytest.approx(min(ends, exact))
    output = rows * 8 * 128 * 2.0
    assert times.send_s == pytest.approx(4e-6 + output / one.link.bandwidth_bytes_per_s)
    assert times.verify_s == pytest.approx(3e-6 + kernels.elementwise(2 * output).memory_s)
    handed = rows * (4096 * 2.0 + 2 * 2 * 128 * 2.0)
    assert times.sync_s == pytest.approx(20e-6 + handed / one.link.bandwidth_bytes_per_s)
    skipped = min(1e-6 * one.framework.kernels_per_layer, other)
    assert times.skip_pre_s + times.skip_post_s == pytest.approx(skipped)
    assert times.skip_pre_s / skipped == pytest.approx(pre / other)
    assert rotated_width(layer.attention, 4) == (32 + 8) * 128 / 4


@pytest.mark.parametrize("reading", READINGS)
def test_every_query_must_pass_or_one_norm_decides(reading):
    """Twelve queries that pass independently with chance h pass together with h^12."""
    timer = plain_timer()
    shape = timer.deployment.attention_shape(timer.deployment.architecture.layer_groups[0].layer.attention)

    def priced(**changed):
        return speculating(timer, reading=reading, **changed).exposed(shape, None)(4, 3, 80_000)

    every = priced(hit_rate=0.9, verification="every-query")
    assert every == pytest.approx(priced(hit_rate=0.9**12), rel=1e-12)
    assert every > priced(hit_rate=0.9)


def test_what_a_send_costs_is_assumed_by_class_of_chip_where_no_time_is_given():
    timer = plain_timer()
    one = timer.deployment
    shape = one.attention_shape(one.architecture.layer_groups[0].layer.attention)
    times = speculating(timer, send_s=None).layer_times(shape, 2, 1, 9000)
    assumed = mechanism_costs(one.chip.kind)["send_s"]
    assert times.send_s == pytest.approx(assumed.value + 2 * 8 * 128 * 2.0 / one.link.bandwidth_bytes_per_s)
    assert assumed.low < assumed.value < assumed.high


def test_layers_with_a_window_do_not_speculate():
    """Twelve of gpt-oss-20b's 24 layers see everything: so many rates, and without them there is nothing to do."""
    timer = plain_timer("gpt-oss-20b", 1)
    assert len(speculating(timer).full_attention) == 1
    speculating(timer, hit_rate=[0.5] * 12)
    with pytest.raises(ForerunError, match="13 rates for 12 layers that speculate"):
        speculating(timer, hit_rate=[0.5] * 13)
    one = timer.deployment
    windowed = tuple(g for g in one.architecture.layer_groups if g.layer.attention.window is not None)
    architecture = replace(one.architecture, layer_groups=windowed, layer_order=())
    with pytest.raises(ForerunError, match="every layer of gpt-oss-20b has a sliding window"):
        speculating(StepTimer(replace(one, architecture=architecture), 64))


TIMES = LayerTimes(1.0, 2.0, 10.0, 1.0, 0.5, 0.25, 1.0, 0.125, 0.25)


class TestWhatIsWrittenDown:
    def bars(self, hits, reading):
        return simulate_pass(TIMES, hits, reading).bars

    def test_the_last_layer_has_no_next_one(self):
        for hits in ([False, False, False], [True, True, True]):
            for reading in ("next-attention", "pipelined"):
                names = {
                    layer: {bar.work for bar in self.bars(hits, reading) if bar.layer == layer} for layer in range(3)
                }
                ahead = {layer for layer, result in names.items() if any("next pre" in name for name in result)}
                assert ahead == {0, 1}
                assert any(name in ("post", "skip post") for name in names[2])
        assert not any("next pre" in bar.work for bar in self.bars([True, True], "same-layer"))

    def test_synchronisation_in_its_three_messages(self):
        """A fifth, 52 % and 28 %, one after the other on the link, as 5, 13 and 7 us of 25."""
        assert SyncParts() == (5 / 25, 13 / 25, 7 / 25)
        bars = [bar for bar in self.bars([True], "next-attention") if bar.lane == "link"][-3:]
        assert [bar.work for bar in bars] == ["priority swap", "residual swap", "kv rows"]
        assert_allclose([bar.end_s - bar.start_s for bar in bars], [0.2, 0.52, 0.28])
        assert_allclose([bar.start_s for bar in bars[1:]], [bar.end_s for bar in bars[:-1]])


class TestLimitsOfALayer:
    @pytest.mark.parametrize("name", LayerTimes.__slots__)
    def test_no_part_is_negative(self, name):
        parts = {slot: getattr(TIMES, slot) for slot in LayerTimes.__slots__}
        with pytest.raises(ForerunError, match=f"{name}: seconds of a part of a layer cannot be negative"):
            LayerTimes(**{**parts, name: np.array([0.1, -1e-9])})

    @pytest.mark.parametrize(
        ("part", "whole"), [("window_s", "exact_s"), ("skip_pre_s", "pre_s"), ("skip_post_s", "post_s")]
    )
    def test_a_part_is_no_longer_than_the_whole(self, part, whole):
        parts = {slot: getattr(TIMES, slot) for slot in LayerTimes.__slots__}
        LayerTimes(**{**parts, part: parts[whole]})
        with pytest.raises(ForerunError, match=f"{part}: cannot exceed {whole}"):
            LayerTimes(**{**parts, part: parts[whole] * (1 + 1e-9)})


class TestTheDocumentedSet:
    def test_attention_is_bound_per_head_or_by_the_chip(self):
        """Half the bandwidth of a head doubles attention; without that limit DRAM is the next."""
        values = SET.values()
        exact = SET.attention_s(4, 65536, values)
        slower = SET.values({"group_head_bytes_per_s": values["group_head_bytes_per_s"] / 2})
        assert SET.attention_s(4, 65536, slower) == pytest.approx(2 * exact)
        free = SET.values({"group_head_bytes_per_s": 1e15})
        kv_bytes = 65536 * 2 * 2 * 128 * 1.0625
        assert SET.attention_s(4, 65536, free) == pytest.approx(kv_bytes / values["dram_bytes_per_s"])

    @pytest.mark.parametrize("reading", READINGS)
    def test_a_layer_is_the_mean_of_a_pass(self, reading):
        times, layers = group_layer(SET, 4096, SET.values()), SET.num_layers
        whole = compare_layouts(SET, 4096, 0.9, reading)
        assert whole.speculative_s == pytest.approx(expected_pass_seconds(times, [0.9] * layers, reading) / layers)

    def test_the_crossover_is_where_the_gain_is_nothing(self):
        for hit_rate in (0.6, 0.9):
            result = crossover_context(SET, hit_rate)
            assert compare_layouts(SET, result, hit_rate).speedup == pytest.approx(1.0, abs=1e-4)
            assert (
                compare_layouts(SET, result * 0.9, hit_rate).speedup
                < 1.0
                < compare_layouts(SET, result * 1.1, hit_rate).speedup
            )
            assert crossover_context(SET, hit_rate, most_tokens=int(result * 0.9)) is None

    def test_the_first_context_may_already_gain(self):
        custom = SET.values()
        free = {"group_other_s": custom["serial_other_s"], "group_rest_s": custom["serial_rest_s"]}
        free |= {"sync_s": 0.0, "verify_s": 0.0, "send_s": 0.0}
        result = crossover_context(SET, 1.0, changes={**free, "skip_launch_s": 0.0})
        assert result is not None
        assert result <= 2.0

    def test_values_lie_in_their_range(self):
        Parameter("x", 1.0, 1.0, 1.0, "what", "made")
        for value in (0.9, 2.1):
            with pytest.raises(ForerunError, match="lies outside its range 1 to 2"):
                Parameter("x", value, 1.0, 2.0, "what", "made")
