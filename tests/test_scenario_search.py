"""Random scenarios over the whole schema run, or are refused in one line; what was found stays found."""

import copy
import itertools
import json
import random
from collections import Counter
from contextlib import suppress
from types import ModuleType

import pytest
from scenario_search.search import (
    CORPUS,
    KNOWN,
    judged,
    of_drafter,
    placed,
    scenario_of,
    schema,
    shrunk,
    with_intervals,
)
from study_commands import end_of

from forerun.errors import ForerunError
from simulator.cli import main
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving import RunLog, compiled
from simulator.serving.fleet import pool

ROUND = range(300)


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.json")), ids=lambda file: file.stem)
def test_what_was_detected_once_runs_or_is_refused(file):
    kind, message = judged(in_corpus(file.stem), intervals=True)
    assert kind in KNOWN, message


def test_the_interpreted_engine_runs_a_confidence_budget_of_traced_lengths():
    assert judged(in_corpus("interpreted-budget"), oracle=True) == ("ok", "")


def in_corpus(name):
    return json.loads((CORPUS / f"{name}.json").read_text("utf-8"))["scenario"]


@pytest.fixture
def conserved(monkeypatch):
    """After every plan of the interpreted engine each block has one owner, and there are no more than there are."""
    engine = compiled.engine_module(interpreted=True)
    plan = engine.Scheduler.plan

    def checked(self):
        result = plan(self)
        known = self.everything()
        assert len({id(s) for s in known}) == len(known)
        several = not isinstance(self, engine.UnifiedScheduler)  # holds what a whole batch, or later steps, will need
        assert several or self._held_blocks == sum(s.blocks for s in known)
        free, room = self.limits.num_blocks - self.used_blocks, self.limits.window_room
        assert 0 <= self.used_blocks <= self.limits.num_blocks
        assert 0 <= self.cache.idle_blocks <= free * (1.0 + (room if self.limits.window_blocks else 0.0))
        assert self.swapped_blocks == sum(s.swapped_blocks for s in known)
        assert self.swapped_blocks <= (self.swap.num_blocks if self.swap else 0)
        assert len(self.running) <= self.limits.max_num_seqs
        assert all(s.blocks == 0 for s in [*self.waiting, *self.swapped])
        return result

    monkeypatch.setattr(engine.Scheduler, "plan", checked)


@pytest.mark.parametrize("part", range(12))
def test_a_seeded_round_finds_nothing(part, conserved):
    """Scenarios 0 to 599, by the compiled engine and interpreted; more by ``make search``."""
    seeds = range(part, 2 * len(ROUND), 12)
    result = {seed: judged(scenario_of(seed), oracle=True, intervals=with_intervals(seed)) for seed in seeds}
    wrong = {seed: message for seed, message in result.items() if message[0] not in KNOWN}
    assert not wrong, wrong
    assert sum(kind == "ok" for kind, _ in result.values()) >= 10, "too many are refused to find anything"


def test_speculation_is_the_same_in_both_engines():
    """A part of ``search.py --count 20000 --section speculation``."""
    result = {seed: judged(scenario_of(seed, "speculation"), oracle=True) for seed in range(150)}
    assert {kind for kind, _ in result.values()} == set(KNOWN), result
    assert sum(kind == "ok" for kind, _ in result.values()) >= 8, "too many are refused to find anything"


def test_requests_push_each_other_out_in_enough_scenarios():
    """By recomputation and by swapping, with shared prefixes, drafts, transfers and failures beside it."""
    seen = Counter()
    for seed in ROUND:
        with suppress(ForerunError):
            run = simulate(scenario_from(placed(scenario_of(seed)), "search"), seed)
            seen.update(preempted=run.kv.preemptions > 0, swapped=bool(run.kv.swapped_blocks), sent=bool(run.transfers))
            seen.update(failed=run.restarts > 0, cached=int(run.requests.cached_tokens.any()))
    assert min(seen.values()) >= 4, seen


STUDIES = {
    "compare": "--vary engine.max_num_seqs=2,8 --replications 2 --no-sensitivity --no-interval --jobs 1 --no-progress",
    "plan": "--rate 5 --slo p99_ttft_ms=1000 --max-replicas 2 --finalists 1 --requests 6 --no-headroom --no-interval "
    "--jobs 1 --no-progress",
    "tune": "--batch 1,8 --context 512 --tokens 1,2 --no-progress",
    "sweep": "--vary engine.max_num_seqs=2,8 --jobs 1 --no-progress",
}
"""Commands that take a scenario, at their smallest."""


@pytest.mark.parametrize("command", STUDIES)
def test_studies_of_random_scenarios_end_with_a_result_or_one_line(command, tmp_path, capsys):
    """Exit 3 is a fault of Forerun, and a traceback one; 1 is a verdict."""
    codes = set()
    for seed in ROUND[:16]:
        data = scenario_of(seed)
        if command == "tune":
            data = of_drafter(data, seed)
        more = f" --store {tmp_path / str(seed)}.sweep" if command == "sweep" else ""
        codes.add(end_of(command, data, STUDIES[command] + more, tmp_path, capsys))
    assert {0, 2} <= codes, "all alike find nothing"


OPERATIONS = ("gemm", "attention_prefill", "attention_decode", "moe", "elementwise", "all_reduce", "sort")
SIZES = ("m", "n", "k", "seqs", "q_len", "kv_len", "tokens", "bytes_moved", "message_bytes", "world_size", "num_heads")


def test_predictions_of_random_kernels_end_with_a_result_or_one_line(capsys):
    codes = set()
    rng = random.Random(1)
    for _ in range(40):
        values = [*[1, 7, 4096] * 3, -1, 0, 10**12, "many", "nan", 0.5]
        words = [f"{name}={rng.choice(values)}" for name in rng.sample(SIZES, rng.randint(0, 4))]
        operation = rng.choice(OPERATIONS)
        if rng.random() < 0.5:
            operation, words = "gemm", [f"{name}={rng.choice(values)}" for name in "mnk"]
        code = main(["predict", operation, *words, "--chip", rng.choice(["h100-sxm", "n150", "h10"])])
        message = capsys.readouterr().err.strip()
        assert code in (0, 2), (operation, words, message)
        assert code != 2 or "\n" not in message, (operation, words, message)
        codes.add(code)
    assert codes == {0, 2}


def test_every_field_of_the_schema_is_drawn():
    """A section that is drawn counts with what it holds."""
    sections = {
        "hardware": "HardwareConfig",
        "engine": "EngineConfig",
        "workload": "WorkloadConfig",
        "attention_speculation": "AttentionSpeculationConfig",
    }
    missing = {name: set(schema()["$defs"][kind]["properties"]) for name, kind in sections.items()}
    for data in map(scenario_of, range(4000)):
        for name in sections:
            if isinstance(data.get(name), dict):
                missing[name] -= data[name].keys()
        if not any(missing.values()):
            break
    assert not any(missing.values()), missing


def test_no_section_of_the_schema_takes_a_field_that_it_does_not_have():
    described = {name: one for name, one in schema()["$defs"].items() if one.get("type") == "object"}
    assert len(described) > 15
    assert [name for name, one in described.items() if one.get("additionalProperties") is not False] == []


RULES = {
    "a block is kept at release": ("_held_blocks -= sequence.blocks", "_held_blocks -= max(0, sequence.blocks - 1)"),
    "one block too many is given": (
        "if self._used() + needed > self._num_blocks:",
        "if self._used() + needed > self._num_blocks + 1:",
    ),
    "a block that is not full is forgotten": (
        "return -(-tokens // self._page_tokens)",
        "return tokens // self._page_tokens",
    ),
    "one place too many in the batch": (
        "and len(self.running) < self._max_num_seqs",
        "and len(self.running) <= self._max_num_seqs",
    ),
    "the last to come is served first": (
        "sequence = self.waiting[0]\n            known",
        "self.waiting.rotate(1)\n            sequence = self.waiting[0]\n            known",
    ),
    "a request is seen before it comes": ("self.collect(self.seen)", "self.collect(self.seen + 0.05)"),
    "a prompt token counts as cached": (
        "sequence.computed_tokens = sequence.drafter_tokens = cached",
        "sequence.computed_tokens = sequence.drafter_tokens = cached + 1",
    ),
    "accepted drafts are counted twice": (
        "self.output.accepted_tokens[index] += taken",
        "self.output.accepted_tokens[index] += 2 * taken",
    ),
    "KV that was handed over stays": (
        "self.cache.ends(sequence.index)\n        self._free(sequence)",
        "self.cache.ends(sequence.index)",
    ),
    "shared blocks stay shared when one request ends": ("self.shared_blocks -= held.blocks[slot]", "pass"),
    "steps overlap": ("self.now = self.end\n", "self.now = 0.5 * (self.start + self.end)\n"),
    "half of the keys are left out": (
        "cython.cast(cython.longlong, query_len), cython.cast(cython.longlong, keys)",
        "cython.cast(cython.longlong, query_len), cython.cast(cython.longlong, keys) // 2",
    ),
    "a draft is accepted too often": (
        "if table.values[row, place] <= bits:",
        "if table.values[row, place] < bits // 2:",
    ),
}
"""Faults in the engine's rules: what stands there, and what is planted."""


PLANTED = itertools.count()
"""Engines share looked-up prices by their sources: each planted one has its own."""


def planted(monkeypatch, right="", wrong=""):
    """The engine with one rule written otherwise, beside the oracle as it is."""
    source = compiled.engine_source().replace('SOURCE = "interpreted"', f'SOURCE = "planted {next(PLANTED)}"', 1)
    assert right in source, "the rule is written otherwise by now: plant the fault anew"
    module = ModuleType("planted")
    exec(compile(source.replace(right, wrong) if right else source, "planted", "exec"), module.__dict__)
    chosen = compiled.engine_module
    monkeypatch.setattr(pool, "engine_module", lambda interpreted=False: chosen(True) if interpreted else module)


@pytest.mark.parametrize("fault", RULES)
def test_planted_faults_in_the_rules_are_detected(monkeypatch, fault):
    """By the invariants, or by the oracle where a rule and its table differ."""
    planted(monkeypatch, *RULES[fault])
    result = (judged(scenario_of(seed), limit_s=20.0, oracle=fault in SEEN_BY_THE_ORACLE) for seed in ROUND)
    assert any(kind not in KNOWN for kind, _ in result)


def test_what_is_planted_without_a_fault_is_missing(monkeypatch):
    planted(monkeypatch)
    assert {judged(scenario_of(seed), oracle=True)[0] for seed in ROUND[:60]} == set(KNOWN)


SEEN_BY_THE_ORACLE = ("half of the keys are left out", "a draft is accepted too often")


def lost_wakeup(monkeypatch):
    """A replica that waits is not woken by new requests."""

    def keep(endpoint, request):
        endpoint.outstanding += 1
        endpoint.add(request, endpoint._env.now)

    monkeypatch.setattr("simulator.serving.request_source.ReplicaEndpoint.put", keep)


def forgotten_refusal(monkeypatch):
    """A request that is turned away is recorded as one that was not."""
    refuse = RunLog.refuse

    def forget(log, request, reason):
        refuse(log, request, reason)
        log.failed[request] = 0

    monkeypatch.setattr(RunLog, "refuse", forget)


@pytest.mark.parametrize("plant", [lost_wakeup, forgotten_refusal])
def test_planted_faults_around_the_engine_are_detected(monkeypatch, plant):
    plant(monkeypatch)
    result = (judged(scenario_of(seed)) for seed in ROUND)
    assert any(kind not in KNOWN for kind, _ in result)


def test_a_finding_is_made_small():
    def found(data):
        return (data.get("workload", {}).get("num_requests") or 0) > 3

    small = shrunk(copy.deepcopy(next(filter(found, map(scenario_of, ROUND)))), found)
    assert small == {"workload": {"num_requests": 4}}
