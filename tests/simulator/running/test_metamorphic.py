"""Runs that must come out alike, or in a known order, though nobody knows how any of them comes out."""

import dataclasses
import json
import random

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plain_scenario import ROUTINGS
from scenario_parts import burst, uniform
from tiny_scenario import tiny_data

from hwprofiles import load_chip
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.workload import RequestStream, generate_requests
from traces import PrefixHashes, read_requests

SEEDS = [1, 2]
TIMES = ("scheduled_s", "first_token_s", "finished_s")
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
LOADED = {
    "arrivals": {"process": "poisson", "request_rate": 150.0},
    "num_requests": 60,
    "output_tokens": uniform(1, 60),
}
TIGHT = {"max_num_seqs": 16, "num_kv_blocks": 150, "max_num_batched_tokens": 512}
SCHEDULERS = ["vllm-v1", "guaranteed-no-evict", "priority", "prefill-first", "sglang", "static"]
ASSUMED = {"kind": "assumed", "reference": "test", "date": "2026-01-01"}


def scenario(workload=None, **sections):
    return scenario_from(tiny_data(**(LOADED | (workload or {}))) | sections, "metamorphic")


def latencies(result):
    """Times of each request since it came."""
    return np.array([getattr(result.requests, name) - result.requests.arrival_s for name in TIMES])


def alike(one, other, **tolerance):
    assert_array_equal(one.requests.failed, other.requests.failed)
    assert_array_equal(one.requests.preemptions, other.requests.preemptions)
    assert_allclose(latencies(one), latencies(other), **({"rtol": 1e-9, "atol": 1e-9} | tolerance))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_twice_the_replicas_and_each_request_twice(scheduler, seed):
    """In turn, each of two replicas gets what the one had."""
    engine = TIGHT | {"scheduler": scheduler, "max_num_batched_tokens": 2048}
    one = scenario(engine=engine)
    stream = generate_requests(one.workload, seed)
    columns = {name: np.repeat(getattr(stream, name), 2) for name in ("arrival_s", "input_tokens", "output_tokens")}
    two = scenario(engine=engine, hardware={"chip": "h100-sxm", "replicas": 2})
    doubled = simulate(two, seed, stream=dataclasses.replace(stream, **columns))
    single = simulate(one, seed, stream=stream)
    for replica in (0, 1):
        custom = doubled.requests.replica == replica
        assert_array_equal(latencies(doubled)[:, custom], latencies(single))
    assert doubled.kv.preemptions == 2 * single.kv.preemptions


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("router", [{}, {"max_outstanding": 1000}])
def test_one_replica_behind_any_router(routing, router, seed):
    plain = simulate(scenario(engine=TIGHT), seed)
    routed = simulate(scenario(engine=TIGHT | {"routing": routing}, router=router), seed)
    alike(plain, routed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_prompts_that_share_nothing_need_no_cache(routing, seed):
    """Hashes of their own for each request; blocks that nobody requests again are no burden."""
    hardware = {"chip": "h100-sxm", "replicas": 2}
    stream = generate_requests(scenario().workload, seed)
    counts = -(-stream.input_tokens // 16)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    distinct = dataclasses.replace(stream, prefix_hashes=PrefixHashes(offsets, np.arange(offsets[-1]), 16))
    runs = []
    for caching in (True, False):
        engine = TIGHT | {"routing": routing, "enable_prefix_caching": caching}
        runs.append(simulate(scenario(engine=engine, hardware=hardware), seed, stream=distinct))
    if not runs[0].kv.preemptions:
        alike(*runs)
    if routing in ("round-robin", "least-outstanding"):
        alike(runs[1], simulate(scenario(engine=TIGHT | {"routing": routing}, hardware=hardware), seed, stream=stream))


@pytest.mark.parametrize("seed", SEEDS)
def test_drafts_that_are_never_accepted_never_help(seed):
    engine = {"max_num_seqs": 16}
    plain = simulate(scenario(engine=engine), seed)
    none_accepted = simulate(scenario(engine=engine, speculation=NGRAM | {"acceptance": {"alpha": 0.0}}), seed)
    counters = none_accepted.speculation
    assert counters.accepted_tokens == 0
    assert counters.num_drafts == (none_accepted.requests.output_tokens - 1).sum()
    assert latencies(none_accepted)[2].mean() >= latencies(plain)[2].mean()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_an_endless_link_between_prefill_and_decode_takes_no_time(tmp_path, first_token, seed):
    """Ever faster links come to an end: nothing waits for one, and a slower one is never better for a burst's end."""
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode"}}
    ends = {}
    for bandwidth in (1e9, 1e12, 1e20, 1e22):
        link = {"name": "wire", "description": "any", "topology": "switch", "source": ASSUMED}
        link |= {"latency_s": 1e-12, "bandwidth_bytes_per_s": bandwidth}
        (tmp_path / "wire.yaml").write_text(json.dumps(link))
        transfer = {"link": str(tmp_path / "wire.yaml"), "first_token": first_token}
        ends[bandwidth] = simulate(scenario(pools=pools, kv_transfer=transfer), seed)
    assert_array_equal(ends[1e20].requests.finished_s, ends[1e22].requests.finished_s)
    waits = [run.transfers.mean_s for run in ends.values()]
    assert np.all(np.diff(waits) < 1e-5), "but for which request comes first at the API server of the decode replica"
    assert ends[1e22].requests.finished_s.max() <= ends[1e9].requests.finished_s.max()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("later_s", [64.0, 4096.0, 2.0**20])
@pytest.mark.parametrize("speculation", [None, NGRAM | {"acceptance": {"alpha": 0.6}}])
def test_another_hour_of_the_day(later_s, speculation, seed):
    """When the first request comes does not matter; far out, times are rounded to what doubles can tell."""
    plain = scenario(engine=TIGHT, speculation=speculation)
    stream = generate_requests(plain.workload, seed)
    stream = dataclasses.replace(stream, arrival_s=np.rint(stream.arrival_s * 2**20) / 2**20)
    moved = dataclasses.replace(stream, arrival_s=stream.arrival_s + later_s)
    now, later = simulate(plain, seed, stream=stream), simulate(plain, seed, stream=moved)
    alike(now, later, atol=1e-9 if later_s < 8192 else 1e-6)


def written(path, stream, times="arrival_s", unit=1.0):
    """A trace file of a stream."""
    rows = zip((stream.arrival_s * unit).tolist(), stream.input_tokens, stream.output_tokens, strict=True)
    lines = [f"{arrival!r},{prompt},{output}" for arrival, prompt, output in rows]
    path.write_text("\n".join([f"{times},input_tokens,output_tokens", *lines, ""]))
    return path


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_trace_written_and_read_again(tmp_path, replicas, seed):
    hardware = {"chip": "h100-sxm", "replicas": replicas}
    made = scenario(engine=TIGHT, hardware=hardware)
    stream = generate_requests(made.workload, seed)
    trace = {"trace": str(written(tmp_path / "trace.csv", stream))}
    read = simulate(scenario_from(made.model_dump(exclude_unset=True) | {"workload": trace}, "read"), seed)
    first = stream.arrival_s[0]
    alike(simulate(made, seed, stream=dataclasses.replace(stream, arrival_s=stream.arrival_s - first)), read)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_equal_requests_of_one_moment_in_any_order(routing, seed):
    """Four at a time, two of each kind; which of the equals comes first in the table changes no sum and no share."""
    rng = np.random.default_rng(seed)
    arrival = np.repeat(np.arange(15) * 0.02, 4)
    prompts = np.tile([100, 100, 400, 400], 15)
    outputs = np.tile([30, 30, 5, 5], 15)
    fleet = scenario(engine=TIGHT | {"routing": routing}, hardware={"chip": "h100-sxm", "replicas": 2})
    order = np.concatenate(
        [4 * group + np.concatenate([rng.permutation(2), 2 + rng.permutation(2)]) for group in range(15)]
    )
    results = [
        simulate(fleet, seed, stream=RequestStream(arrival[rows], prompts[rows], outputs[rows], None))
        for rows in (np.arange(60), order)
    ]
    assert results[0].summary == results[1].summary


def random_burst(seed):
    """A chip, and all but the chip of a scenario in which requests come at once."""
    rng = random.Random(seed)
    workload = burst(rng.randint(1, 24), uniform(1, rng.choice([40, 600, 4000])), uniform(1, rng.choice([2, 40, 120])))
    engine = {
        "framework": rng.choice(["vllm", "sglang", "trtllm"]),
        "max_num_seqs": rng.choice([1, 4, 16, 256]),
        "max_num_batched_tokens": rng.choice([512, 2048, 8192]),
        "max_model_len": 8192,
    }
    data = {
        "model": rng.choice(["llama-3.2-1b", "llama-3.1-8b", "gemma-3-4b", "qwen3-30b-a3b", "gpt-oss-20b"]),
        "workload": workload,
        "engine": engine,
    }
    if rng.random() < 0.3:
        data["speculation"] = NGRAM | {"acceptance": {"alpha": 0.6}}
    chip = rng.choice(["h100-sxm", "a100-sxm-80gb", "b200-sxm", "mi300x", "l40s"])
    return chip, data | {"hardware": {"tensor_parallel": 2 if chip == "l40s" else rng.choice([1, 1, 2])}}


def more_of(name, what, factor):
    """The fields of a chip with ``factor`` times the cores (each as it was), the bandwidth or the capacity."""
    chip = load_chip(name)
    compute, memory = chip.compute.model_dump(exclude_none=True), chip.memory.model_dump()
    store = chip.on_chip.model_dump()
    if what == "cores":
        cores = round(compute["cores"] * factor)
        rates = {dtype: rate * cores / compute["cores"] for dtype, rate in compute["dense_flops_per_s"].items()}
        compute |= {"cores": cores, "dense_flops_per_s": rates, "source": ASSUMED}
        compute.pop("field_sources")
    else:
        field = {"bandwidth": "bandwidth_bytes_per_s", "capacity": "capacity_bytes"}[what]
        memory |= {field: memory[field] * factor, "source": ASSUMED}
        memory.pop("field_sources")
        fastest = max(store["bandwidth_bytes_per_s"], memory["bandwidth_bytes_per_s"])
        store |= {"bandwidth_bytes_per_s": fastest, "source": ASSUMED}
        store.pop("field_sources")
    groups = {"compute": compute, "memory": memory, "on_chip": store}
    changed = {"cores": ["compute"], "bandwidth": ["memory", "on_chip"], "capacity": ["memory"]}[what]
    return {"extends": name, "name": "more"} | {group: groups[group] for group in changed}


@pytest.mark.parametrize("seed", range(8))
def test_more_of_a_chip_is_never_slower_for_a_burst(tmp_path, seed):
    """No rule makes an exception, for bursts on one replica. Twice an H100's cores ended one 9 % later, while a core's
    draw was its share of all, and more parts of a split KV axis were combined than paid. By physics: what was learned
    on a chip's own measurements is of that chip alone."""
    name, data = random_burst(seed)
    data["engine"] = data.get("engine", {}) | {"kernel_correction": False}
    plain = simulate(scenario_from(data | {"hardware": data["hardware"] | {"chip": name}}, "burst"), seed)
    for what, factor in (("cores", 1.25), ("cores", 2.0), ("bandwidth", 2.0), ("capacity", 2.0)):
        file = tmp_path / f"{what}-{factor}.yaml"
        file.write_text(json.dumps(more_of(name, what, factor)))
        more = simulate(scenario_from(data | {"hardware": data["hardware"] | {"chip": str(file)}}, "burst"), seed)
        ends = [run.requests.finished_s.max() for run in (plain, more)]
        assert ends[1] <= ends[0] * (1 + 1e-9), (what, factor)
        assert more.kv.num_blocks >= plain.kv.num_blocks


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("unit", "scale"), [("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
def test_a_trace_in_seconds_and_in_milliseconds(tmp_path, unit, scale, seed):
    made = scenario(engine=TIGHT)
    stream = generate_requests(made.workload, seed)
    stream = dataclasses.replace(stream, arrival_s=np.rint(stream.arrival_s * 1e3) / 1e3)
    runs = []
    for name, per_s in (("s", 1.0), (unit, scale)):
        table = read_requests(written(tmp_path / f"{name}.csv", stream, "timestamp", per_s), time_unit=name)
        read = dataclasses.replace(stream, arrival_s=table.arrival_s - table.arrival_s[0])
        runs.append(simulate(made, seed, stream=read))
    alike(*runs)


FIXED = {"arrivals": {"process": "burst"}, "input_tokens": 100, "output_tokens": 20}
UNIFORM = uniform(1, 60)
GROUPS = {"chip": "h100-sxm", "speculative_parallel": 2}


@pytest.mark.parametrize(
    ("workload", "sections", "drawn"),
    [
        (FIXED, {}, False),
        (FIXED | {"arrivals": {"process": "constant", "request_rate": 50.0}}, {}, False),
        (FIXED | {"output_tokens": {"distribution": "constant", "value": 20}}, {}, False),
        (FIXED | {"arrivals": {"process": "closed-loop", "max_concurrency": 4}}, {}, False),
        (FIXED | {"output_tokens": UNIFORM}, {}, True),
        (FIXED | {"arrivals": {"process": "poisson", "request_rate": 50.0}}, {}, True),
        (FIXED | {"priorities": (0, 1)}, {"engine": {"scheduler": "priority", "max_num_seqs": 2}}, True),
        (FIXED, {"speculation": NGRAM | {"acceptance": {"alpha": 0.6}}}, True),
        (FIXED, {"speculation": {"method": "none"}}, False),
        (FIXED, {"hardware": GROUPS, "attention_speculation": {"hit_rate": 0.5}}, False),
        (FIXED, {"hardware": GROUPS, "attention_speculation": {"hit_rate": 0.5, "hits": "drawn"}}, True),
        (FIXED, {"hardware": {"chip": "h100-sxm", "replicas": 2}, "faults": {"mtbf_s": 0.1, "mttr_s": 0.1}}, True),
    ],
)
def test_seeds_differ_where_something_is_drawn_and_nowhere_else(workload, sections, drawn):
    requested = scenario(workload, **sections)
    one, other = (latencies(simulate(requested, seed)) for seed in SEEDS)
    assert requested.random == drawn
    assert (not np.array_equal(one, other)) == drawn


def test_seeds_of_a_replayed_trace_differ_in_drawn_arrivals_alone():
    replayed = scenario_from(tiny_data() | {"workload": {"trace": "azure-conv-2023", "num_requests": 20}}, "replayed")
    drawn = replayed.with_values({"workload.arrivals": {"process": "poisson", "request_rate": 9.0}})
    for requested in (replayed, drawn):
        one, other = (latencies(simulate(requested, seed)) for seed in SEEDS)
        assert np.array_equal(one, other) != requested.random
    assert drawn.random
