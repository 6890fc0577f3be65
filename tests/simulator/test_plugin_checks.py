"""The conformance checks of plug-ins: every built-in keeps the rules, and each rule finds a plug-in that breaks it."""

import itertools
from dataclasses import asdict
from importlib import import_module
from math import nan

import pytest

import forerun as fr
from simulator.serving import engine
from simulator.serving.engine import UnifiedScheduler
from simulator.serving.fleet.router import QueueWhenFull
from simulator.serving.fleet.routing import RoundRobin
from simulator.serving.rules import ADMISSION, ROUTING, SCHEDULERS
from traces import read_requests, sample_path
from traces.requests import detect

ARRIVALS = itertools.count()


def built_in(place):
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_built_in_schedulers_keep_the_rules(name):
    facts = asdict(SCHEDULERS[name])
    fr.testing.check_scheduler(getattr(engine, facts.pop("make")), **facts)


@pytest.mark.parametrize("name", list(ROUTING))
def test_built_in_routing_policies_keep_the_rules(name):
    fr.testing.check_router(built_in(ROUTING[name]))


@pytest.mark.parametrize("name", list(ADMISSION))
def test_built_in_admission_rules_keep_the_rules(name):
    fr.testing.check_admission(built_in(ADMISSION[name]))


class Loses(UnifiedScheduler):
    def add(self, sequence):
        if sequence.index % 5:
            super().add(sequence)


class QueuesTwice(UnifiedScheduler):
    def add(self, sequence):
        super().add(sequence)
        if sequence.index == 3:
            super().add(sequence)


class BeyondTheBudget(UnifiedScheduler):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._budget *= 2


class BeyondTheBatch(UnifiedScheduler):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._max_num_seqs += 1


class TwoOwners(UnifiedScheduler):
    def _plan(self):
        plan = super()._plan()
        self._held_blocks -= sum(sequence.blocks for sequence in self.running[:1])
        return plan


class KeepsBlocks(UnifiedScheduler):
    def release(self, sequence):
        kept = sequence.blocks
        super().release(sequence)
        self._held_blocks += min(1, kept)


class Idles(UnifiedScheduler):
    def _plan(self):
        return engine.StepPlan()


class Crashes(UnifiedScheduler):
    def _plan(self):
        return super()._plan() if len(self.waiting) < 20 else self.waiting[1000]


class ByChance(UnifiedScheduler):
    def add(self, sequence):
        super().add(sequence)
        self.waiting.rotate(next(ARRIVALS) % 5)


class LastComeFirst(UnifiedScheduler):
    def add(self, sequence):
        self.waiting.appendleft(sequence)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Loses, "Loses: request 0 is lost"),
        (QueuesTwice, "request 3 is in 2 places"),
        (BeyondTheBudget, r"a step has \d+ tokens, max_num_batched_tokens is 512 \(with a burst\)"),
        (BeyondTheBatch, "9 requests run, max_num_seqs is 8"),
        (TwoOwners, "some have two owners"),
        (KeepsBlocks, "KV blocks after the last|KV blocks are in use"),
        (Idles, "a step is empty while requests wait and none runs"),
        (Crashes, "Crashes: IndexError"),
        (ByChance, "two runs of one seed differ"),
    ],
)
def test_a_faulty_scheduler_is_refused_by_its_rule(make, words):
    with pytest.raises(fr.ForerunError, match=words) as caught:
        fr.testing.check_scheduler(make)
    assert "\n" not in str(caught.value)


def test_a_scheduler_is_held_to_what_it_states():
    fr.testing.check_scheduler(LastComeFirst)
    with pytest.raises(fr.ForerunError, match="was scheduled before request"):
        fr.testing.check_scheduler(LastComeFirst, first_come=True)


class First(RoundRobin):
    """The replica that was offered first, for ever: also when it has failed."""

    kept = None

    def choose(self, request, endpoints):
        self.kept = self.kept or endpoints[-2 if len(endpoints) > 2 else 0]
        return self.kept


class Number(RoundRobin):
    def choose(self, request, endpoints):
        return endpoints[0].index


class Removes(RoundRobin):
    def choose(self, request, endpoints):
        return endpoints.pop()


class Drawn(RoundRobin):
    def choose(self, request, endpoints):
        return endpoints[next(ARRIVALS) % 7 % len(endpoints)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (First, "First: request .* is sent to replica 1, which has failed .with failing replicas|none of the replicas"),
        (Number, "sent to 0, which is none of the replicas"),
        (Removes, "choose changes the list"),
        (Drawn, "two runs of one seed differ"),
    ],
)
def test_a_faulty_routing_policy_is_refused_by_its_rule(make, words):
    with pytest.raises(fr.ForerunError, match=words):
        fr.testing.check_router(make)


class Foreign(QueueWhenFull):
    def takers(self, endpoints):
        return [*endpoints, "another"]


class Twice(QueueWhenFull):
    def takers(self, endpoints):
        return [*endpoints, *endpoints[:1]]


class Closed(QueueWhenFull):
    def takers(self, endpoints):
        return []


class NoReason(QueueWhenFull):
    def refusal(self, queued, up):
        return ""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Foreign, "Foreign: takers returns 'another', which is none of the replicas"),
        (Twice, "takers returns a replica twice"),
        (Closed, "stands still"),
        (NoReason, "refusal returns '', neither a reason nor None"),
    ],
)
def test_a_faulty_admission_rule_is_refused_by_its_rule(make, words):
    with pytest.raises(fr.ForerunError, match=words):
        fr.testing.check_admission(make)


def rows(*others, **changes):
    """A reader of three requests, with changes to the second and requests behind."""
    request = {"arrival_s": 0.5, "input_tokens": 10, "output_tokens": 5}

    def read(path):
        return [request, request | {"arrival_s": 1.0} | changes, request | {"arrival_s": 2.0}, *others]

    return read


def test_a_reader_of_what_forerun_reads_keeps_the_rules():
    def read(path):
        table = read_requests(path)
        for row in zip(
            table.arrival_s.tolist(), table.input_tokens.tolist(), table.output_tokens.tolist(), strict=True
        ):
            yield dict(zip(("arrival_s", "input_tokens", "output_tokens"), row, strict=True))

    fr.testing.check_reader(read, sample_path("azure-conv-2023"))
    fr.testing.check_reader(rows(session_id="a", turn=1, think_time_s=0.5, prefix_hashes=[1], block_tokens=16), "any")


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (rows(input_tokens=-1), "request 1: input_tokens is -1, not a whole number from 1"),
        (rows(output_tokens=2.5), "request 1: output_tokens is 2.5"),
        (rows(output_tokens=None), "request 1 has no output_tokens"),
        (rows(arrival_s=nan), "request 1: arrival_s is nan"),
        (rows(arrival_s="now"), "request 1: arrival_s is 'now'"),
        (rows(arrival_s=0.1), "request 1: arrival_s 0.1 is before that of the request before, 0.5"),
        (rows(think_time_s=-1.0), "think_time_s is -1.0"),
        (rows(tokens=3), "request 1 has a column 'tokens'"),
        (rows((1, 2, 3)), r"request 3 is \(1, 2, 3\), not a mapping"),
        (lambda path: [], "has 0 requests"),
        (lambda path: path.read_text(), "FileNotFoundError"),
        (lambda path: rows(input_tokens=1 + next(ARRIVALS))(path), "reads differently the second time"),
    ],
)
def test_a_faulty_reader_is_refused_by_its_rule(read, words):
    with pytest.raises(fr.ForerunError, match=words):
        fr.testing.check_reader(read, "no-such-file")


def test_checks_leave_no_name_behind():
    fr.testing.check_router(RoundRobin)
    assert set(ROUTING) == {"round-robin", "random", "least-outstanding", "prefix-aware", "kv-aware", "scored"}
    assert not detect.READERS
