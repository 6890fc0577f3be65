"""What `check_drafter` asks of a drafter, by counting, and that every rule it states is one that it finds broken."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from forerun.errors import ForerunError
from simulator.timing import Part, causal_pairs, check_drafter, keys_read

WINDOWS = (None, 64)


def sequences(work):
    return work.decode_seqs + work.sampled_prefills


def pass_s(work):
    """A drafter's seconds: a little per sequence, a little per key, more for prompts."""
    keys = sum(work.decode_kv_tokens) + sum(work.sampled_kv_tokens)
    return 1e-5 * sequences(work) + 1e-9 * keys + 1e-6 * work.prefill_tokens


@dataclass
class Priced:
    """A drafter made of one formula; any of its answers can be replaced."""

    formula: object = pass_s
    windows: tuple = WINDOWS
    pass_tokens: tuple = (1,)
    runs_on: str = "device"
    weight_bytes: float = 1e9
    kv_bytes_per_token: float = 10.0
    shorter: object = None
    caught_up_s: float = 0.0
    many: object = None
    kind: str = "device"
    calls: list = field(default_factory=list)

    def parts(self, work):
        self.calls.append(work)
        together = isinstance(work.decode_seqs, np.ndarray) and self.many is not None
        return [Part(1, None, ((self.many if together else self.formula)(work),), self.kind)]

    def with_tokens(self, count):
        return replace(self, formula=self.shorter or self.formula)

    def catch_up(self, draft):
        return [Part(draft.skipped_tokens == 0, None, (self.caught_up_s,))]


@pytest.mark.parametrize("query_len", [1, 5])
@pytest.mark.parametrize("max_seqs", [2, 8])
def test_the_steps_that_are_tried_are_steps_of_an_engine(query_len, max_seqs):
    """Windows cut what is read as everywhere else; no step has more sequences than the caller allows."""
    drafter = Priced()
    check_drafter(drafter, query_len, max_seqs)
    single = [work for work in drafter.calls if not isinstance(work.decode_seqs, np.ndarray)]
    assert max(sequences(work) for work in single) == max_seqs
    for work in single:
        # Many contexts at once are requested only where nothing is prefilled.
        for keys in (work.decode_kv_tokens, work.prefill_kv_tokens, work.sampled_kv_tokens):
            assert work.prefill_seqs == 0 or not any(isinstance(entry, np.ndarray) for entry in keys)
        for place, window in enumerate(WINDOWS):
            prompt = work.prefill_tokens // max(work.prefill_seqs, 1)
            assert work.prefill_pairs[place] == work.prefill_seqs * causal_pairs(prompt, 0, window)
            assert work.prefill_kv_tokens[place] == work.prefill_seqs * prompt
            assert work.sampled_kv_tokens[place] == work.sampled_prefills * keys_read(prompt + 1, 1, window)
            for whole, cut in zip(
                *map(np.atleast_1d, (work.decode_kv_tokens[0], work.decode_kv_tokens[place])), strict=True
            ):
                if work.decode_seqs:
                    context = whole // work.decode_seqs
                    assert cut == work.decode_seqs * keys_read(context, work.query_len, window)
    kinds = {(work.decode_seqs > 0, work.prefill_seqs > 0) for work in single}
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}


def dearer_in_company(work):
    return pass_s(work) * (1 + 0.05 * (np.asarray(work.decode_seqs) > 1))


def cheaper_in_company(work):
    return np.where(sequences(work) > 0, 1e-3 / np.maximum(sequences(work), 1), 0.0) + 0.0 * pass_s(work)


def cheaper_far_out(work):
    """Falls by 4 % over the forty contexts that are tried."""
    context = work.decode_kv_tokens[0] / np.maximum(work.decode_seqs, 1)
    return np.where(sequences(work) > 0, 1e-3 * (1 - 1e-3 * (context - 600)), 0.0)


def other_in_a_run(work):
    run = isinstance(work.decode_kv_tokens[0], np.ndarray) and not isinstance(work.decode_seqs, np.ndarray)
    return pass_s(work) * (1 + 1e-6 * run)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"formula": cheaper_in_company}, "for 8 sequences costs less"),
        (
            {"formula": lambda work: 1e-3 * (sequences(work) > 0) * (0.97 if np.all(work.decode_seqs == 8) else 1)},
            "costs",
        ),
        ({"formula": other_in_a_run}, "in a run of steps"),
        ({"formula": cheaper_far_out}, "longer contexts cost less"),
        ({"many": dearer_in_company}, "a step of a batch costs"),
        ({"many": lambda work: (1 - 1e-8) * pass_s(work)}, "alone and"),
        ({"formula": lambda work: pass_s(work) + 1e-9}, "a step without work costs"),
        ({"formula": lambda work: pass_s(work) * np.inf if np.any(work.prefill_seqs) else pass_s(work)}, "costs inf s"),
        ({"shorter": lambda work: -1e-9}, "drafting one token costs -1e-09 s"),
        ({"shorter": lambda work: 1.05 * pass_s(work)}, "drafting one token costs"),
        ({"caught_up_s": 1e-6}, "catching up with no skipped token costs"),
        (
            {"many": lambda work: np.where(sequences(work) > 0, pass_s(work), np.nan)},
            "costs.compute_s must hold one number",
        ),
        ({"pass_tokens": (3, 0)}, "pass_tokens (3, 0) must be >= 1"),
        ({"windows": (None, 0)}, "must differ and be >= 1"),
        ({"windows": (64, 64)}, "must differ and be >= 1"),
        ({"kv_bytes_per_token": -1.0}, "kv_bytes_per_token is -1.0"),
        ({"weight_bytes": np.inf}, "weight_bytes is inf"),
        ({"weight_bytes": np.nan}, "weight_bytes is nan"),
        ({"runs_on": "moon"}, "runs_on is 'moon'"),
        ({"formula": lambda work: -1.0 * sequences(work)}, "costs -"),
        ({"runs_on": "host"}, "runs on the host but has"),
        ({"runs_on": "host", "weight_bytes": 0.0}, "runs on the host but has"),
        ({"runs_on": "host", "weight_bytes": 0.0, "kv_bytes_per_token": 0.0}, "runs on the host but has"),
        (
            {"runs_on": "host", "weight_bytes": 0.0, "kv_bytes_per_token": 0.0, "pass_tokens": ()},
            "runs on the host but takes device time",
        ),
    ],
)
def test_every_rule_is_detected_broken(broken, expected):
    check_drafter(Priced(), 5)
    with pytest.raises(ForerunError, match=r"^Priced: ") as caught:
        check_drafter(Priced(**broken), 5)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "fine",
    [
        {"many": lambda work: (1 + 1e-10) * pass_s(work)},
        {"shorter": lambda work: 0.0},
        {"shorter": lambda work: 1.01 * pass_s(work)},
        {"windows": (1,), "pass_tokens": (1, 1)},
        {"weight_bytes": 0.0, "kv_bytes_per_token": 0.0},
        {"kind": "host"},
        {"runs_on": "host", "kind": "host", "weight_bytes": 0.0, "kv_bytes_per_token": 0.0, "pass_tokens": ()},
    ],
)
def test_what_lies_within_the_rules_passes(fine):
    check_drafter(Priced(**fine), 5)
