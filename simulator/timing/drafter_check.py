"""Validation of custom drafters against the rules that the engine relies on."""

from __future__ import annotations

import numpy as np

from forerun.errors import ForerunError
from hwprofiles.formulas import Num
from simulator.timing.drafters import AdjustableDrafter, Drafter, drafting_costs, drafting_seconds
from simulator.timing.work import DraftStep, StepWork

TOLERANCE = 0.02
"""Share by which a larger step may be cheaper than a smaller one: kernel efficiency rises in jumps."""
SAME = 1e-9
"""Maximum relative difference between two prices of one step that count as equal."""
CONTEXT_TOKENS = 600
PROMPT_TOKENS = 100


def check_drafter(drafter: Drafter, query_len: int, max_seqs: int = 8) -> None:
    """Check a drafter against all rules that the engine relies on, on small steps of each kind.

    Rules: costs and memory are finite and not negative; a step without work costs nothing; costs are the same for
    numbers, for a run of decode steps and for arrays; more sequences and longer contexts never cost less; a shorter
    chain (if it can be requested) never costs more; and a drafter on the host uses no chip memory and runs no pass.

    Args:
        drafter: the drafter to check.
        query_len: tokens per sequence that the target verifies: draft tokens and one.
        max_seqs: maximum number of sequences in the test steps, >= 2.

    Raises:
        ForerunError: a rule is broken; the message describes the first broken rule in one line.
    """
    name = type(drafter).__name__
    if not isinstance(drafter, Drafter):
        raise ForerunError(f"{name} lacks something that simulator.timing.Drafter requires")
    _check_description(name, drafter)
    works = {
        "nothing": _step(drafter, 0, 0, query_len),
        "one decode": _step(drafter, 1, 0, query_len),
        "a batch": _step(drafter, max_seqs, 0, query_len),
        "a prompt": _step(drafter, 0, 1, query_len),
        "both": _step(drafter, max_seqs - 1, 1, query_len),
    }
    per_kind_s = {kind: drafting_seconds(drafter.parts(work)) for kind, work in works.items()}
    for kind, seconds in per_kind_s.items():
        if not np.isfinite(seconds) or seconds < 0.0:
            raise ForerunError(f"{name}: a step of {kind} costs {seconds} s")
    if per_kind_s["nothing"] != 0.0:
        raise ForerunError(f"{name}: a step without work costs {per_kind_s['nothing']} s")
    costs = drafting_costs(drafter.parts(_stacked(list(works.values()))), len(works))
    parts = {part: np.asarray(getattr(costs, part)) for part in costs.__slots__}
    for part, values in parts.items():
        if values.shape != (len(works),) or not np.isfinite(values).all() or (values < 0.0).any():
            raise ForerunError(f"{name}: costs.{part} must hold one number >= 0 per step (got {values})")
    for kind, total in zip(works, costs.device_s + costs.host_s, strict=True):
        if abs(total - per_kind_s[kind]) > SAME * max(total, per_kind_s[kind]):
            raise ForerunError(f"{name}: a step of {kind} costs {per_kind_s[kind]} s alone and {total} s among others")
    if drafter.runs_on == "host" and (costs.device_s > 0.0).any():
        raise ForerunError(f"{name}: runs on the host but takes device time")
    _check_growth(name, drafter, query_len, max_seqs)
    if isinstance(drafter, AdjustableDrafter):
        _check_shorter(name, drafter, works["a batch"], per_kind_s["a batch"])


def _check_description(name: str, drafter: Drafter) -> None:
    if drafter.runs_on not in ("device", "host"):
        raise ForerunError(f"{name}: runs_on is {drafter.runs_on!r}, not 'device' or 'host'")
    if len(set(drafter.windows)) != len(drafter.windows) or any(w is not None and w < 1 for w in drafter.windows):
        raise ForerunError(f"{name}: windows {drafter.windows} must differ and be >= 1 or None")
    if any(tokens < 1 for tokens in drafter.pass_tokens):
        raise ForerunError(f"{name}: pass_tokens {drafter.pass_tokens} must be >= 1")
    for field in ("weight_bytes", "kv_bytes_per_token"):
        value = getattr(drafter, field)
        if not np.isfinite(value) or value < 0.0:
            raise ForerunError(f"{name}: {field} is {value}")
    if drafter.runs_on == "host" and (drafter.weight_bytes or drafter.kv_bytes_per_token or drafter.pass_tokens):
        raise ForerunError(f"{name}: runs on the host but has weights, a KV cache or passes on the chips")


def _check_shorter(name: str, drafter: AdjustableDrafter, work: StepWork[int], full_s: float) -> None:
    """Check that a shorter chain never costs more, and that catching up with no skipped tokens costs nothing."""
    shorter = drafting_seconds(drafter.with_tokens(1).parts(work))
    if not 0.0 <= shorter <= full_s * (1.0 + TOLERANCE):
        raise ForerunError(f"{name}: drafting one token costs {shorter} s, the full proposal {full_s} s")
    one, windows = np.zeros(1, dtype=np.int64), len(drafter.windows)
    skipped = DraftStep(one, one, one, one, (one,) * windows, (one,) * windows)
    nothing = drafting_costs(drafter.catch_up(skipped), 1)
    if (nothing.device_s + nothing.host_s).any():
        raise ForerunError(f"{name}: catching up with no skipped token costs {nothing.device_s + nothing.host_s} s")


def _check_growth(name: str, drafter: Drafter, query_len: int, max_seqs: int) -> None:
    """Check that more sequences and longer contexts never cost less, and that a run costs as its steps."""
    one, many = (drafting_seconds(drafter.parts(_step(drafter, seqs, 0, query_len))) for seqs in (1, max_seqs))
    if many < one * (1.0 - TOLERANCE):
        raise ForerunError(f"{name}: drafting for {max_seqs} sequences costs less ({many} s) than for one ({one} s)")
    contexts = np.arange(CONTEXT_TOKENS, CONTEXT_TOKENS + 40, dtype=np.int64)
    run = _step(drafter, 2, 0, query_len)._replace(
        decode_kv_tokens=tuple(2 * _inside(contexts, window, query_len) for window in drafter.windows)
    )
    together = np.broadcast_to(drafting_seconds(drafter.parts(run)), contexts.shape)
    for context, seconds in zip(contexts.tolist(), together.tolist(), strict=True):
        keys = tuple(int(2 * _inside(context, window, query_len)) for window in drafter.windows)
        drafting_s = drafting_seconds(drafter.parts(run._replace(decode_kv_tokens=keys)))
        if abs(drafting_s - seconds) > SAME * abs(drafting_s):
            raise ForerunError(f"{name}: a decode step costs {drafting_s} s alone and {seconds} s in a run of steps")
    if together[-1] < together[0] * (1.0 - TOLERANCE):
        raise ForerunError(f"{name}: longer contexts cost less ({together[-1]} s) than shorter ones ({together[0]} s)")


def _step(drafter: Drafter, decodes: int, prompts: int, query_len: int) -> StepWork[int]:
    """Work of a step of decoding sequences at one context and uncached prompts of one length."""
    windows = drafter.windows
    n = PROMPT_TOKENS
    pairs = [n * (n + 1) // 2 if w is None or w >= n else w * (w + 1) // 2 + (n - w) * w for w in windows]
    return StepWork(
        prefill_seqs=prompts,
        prefill_tokens=prompts * n,
        prefill_pairs=tuple(prompts * p for p in pairs),
        prefill_kv_tokens=tuple(prompts * n for _ in windows),
        sampled_prefills=prompts,
        sampled_kv_tokens=tuple(int(prompts * _inside(n + 1, w, 1)) for w in windows),
        decode_seqs=decodes,
        query_len=query_len,
        decode_kv_tokens=tuple(int(decodes * _inside(CONTEXT_TOKENS, w, query_len)) for w in windows),
    )


def _inside(context: Num, window: int | None, query_len: int) -> Num:
    return context if window is None else np.minimum(context, window + query_len - 1)


def _stacked(works: list[StepWork[int]]) -> StepWork[Num]:
    """Combine the work of many steps into arrays."""
    return StepWork.of_numbers(list(np.array([work.numbers for work in works], dtype=np.int64).T))
