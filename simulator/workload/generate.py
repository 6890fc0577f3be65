"""Generation of the requests of a workload section: arrival times and lengths, reproducible from the seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.errors import ForerunError
from forerun.recent import RecentResults
from forerun.types import LONGEST_S
from simulator.workload.memory import refuse_if_larger_than_memory
from simulator.workload.workload_config import (
    ArrivalsConfig,
    LengthConfig,
    SessionsConfig,
    SharedPrefixesConfig,
    WarmUpConfig,
    WorkloadConfig,
)
from traces import PrefixHashes, RequestTable

SESSION_DRAWS = 4096
"""Number of draws that represent the distribution of turns per conversation."""
BYTES_PER_REQUEST = 450
"""Bytes of memory per request, from trace row to record; measured on four million requests."""
BYTES_PER_HASH = 40
"""Bytes of memory per prefix hash during its computation."""
LARGE_FILE = 100 << 20
"""Minimum bytes of a trace file whose memory is estimated from its first ``FIRST_ROWS`` requests before the read."""
FIRST_ROWS = 1000
MOST_CUT = 0.9
"""Share of a lognormal mean below which a note reports the mean after the cut at ``max``."""


class LoadStages(NamedTuple):
    """Stages of a load test, one after the other."""

    of: IntArray
    """Number of the stage of each request, from 0."""
    begin_s: FloatArray
    """Begin of each stage if it does not wait for the stage before."""
    drain_s: float | None
    """Seconds from the end of a stage's last request to the next stage, whatever ``begin_s``; None: no waiting."""


@dataclass(frozen=True, slots=True)
class RequestStream:
    """Requests in order of arrival.

    In a closed loop ``max_concurrency`` is set and ``arrival_s`` is all zeros: request i is sent as soon as fewer than
    ``max_concurrency`` of the requests before it are outstanding.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    max_concurrency: int | None
    prefix_hashes: PrefixHashes | None = None
    """Prefix hashes: requests with equal hashes start with the same tokens; None if the trace has no hashes."""
    notes: tuple[str, ...] = ()
    answers_hashed: bool = False
    """True if ``prefix_hashes`` also cover the answers; they then cover whole blocks only."""
    follows: IntArray | None = None
    """Dependencies as pairs of request indices (predecessor, waiting request). A request arrives after all its
    predecessors have ended; None if requests do not wait for each other."""
    priorities: IntArray | None = None
    """Priority of each request: lower goes first if the scheduler uses priorities; None = all equal."""
    think_s: FloatArray | None = None
    """Seconds from the end of a request's last predecessor to its arrival. ``arrival_s`` of a waiting request is its
    session's start, or the recorded time."""
    guessed: BoolArray | None = None
    """True for requests whose preceding tool call is guessed right; None without guesses."""
    guessed_at: float = 1.0
    """Share of a turn's duration after which its tool call is guessed."""

    stages: LoadStages | None = None
    """Stages of a load test; None without. ``arrival_s`` are the times if no stage waits for another."""
    warm_up: BoolArray | None = None
    """True for requests left out of the run's figures; None if all count."""

    def overlap_s(self, waiting: int | IntArray, turn_s: float | FloatArray) -> float | FloatArray:
        """Seconds by which guessed tools before some requests overlap the turns of ``turn_s`` seconds."""
        assert self.think_s is not None
        return np.minimum(self.think_s[waiting], (1.0 - self.guessed_at) * turn_s)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def times_depend(self) -> bool:
        """True if some requests arrive when others have ended, in an open loop."""
        return self.follows is not None or (self.stages is not None and self.stages.drain_s is not None)

    @property
    def stays_in_step(self) -> bool:
        """True if a closed loop has answers of equal length, so that requests that start together also end together."""
        most, outputs = self.max_concurrency, self.output_tokens
        return most is not None and 1 < most < len(self) and 2 <= outputs.min() == outputs.max()


def generate_requests(workload: WorkloadConfig, seed: int) -> RequestStream:
    """Generate all requests of a run.

    Arrival times, input lengths and output lengths are drawn from three independent streams of ``seed``, so that a
    change of one leaves the others unchanged (common random numbers).

    Raises:
        ForerunError: the trace has no arrival times and no arrival process is set; arrivals take too long to simulate;
            a file of lengths is invalid; the requests do not fit in memory.
        traces.TraceError: the trace cannot be read.
    """
    stream = _generate(workload, seed)
    if workload.trace is None:
        stream = replace(stream, notes=(*stream.notes, *_cut_notes(workload)))
    if workload.priorities is not None:
        stream = replace(stream, priorities=_priorities(workload.priorities, stream, seed))
    tools = workload.speculative_tools
    if tools is not None:
        if stream.follows is None:
            raise ForerunError("workload.speculative_tools: no request waits for another here; remove it")
        guessed = np.random.default_rng([seed, 0x7001]).random(len(stream)) < tools.hit_rate
        stream = replace(stream, guessed=guessed, guessed_at=tools.guessed_at)
    if workload.warm_up is not None:
        stream = replace(stream, warm_up=_warm_up(workload.warm_up, stream))
    if len(stream) and not stream.arrival_s[-1] <= LONGEST_S:
        raise ForerunError(
            f"workload.arrivals: the last request would arrive after {stream.arrival_s[-1]:.3g} s; a run may last "
            f"{LONGEST_S:.0e} s; raise the rate or lower num_requests"
        )
    return stream


def usual_tokens(workload: WorkloadConfig) -> float:
    """Mean tokens of a running sequence, to whole hundreds: prompt and half of the output, weighted by the output."""
    stream = generate_requests(workload, 0)
    return float(round(np.average(stream.input_tokens + stream.output_tokens / 2, weights=stream.output_tokens), -2))


def _generate(workload: WorkloadConfig, seed: int) -> RequestStream:
    arrivals_rng, input_rng, output_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    if workload.trace is not None:
        return _from_trace(workload, workload.trace, arrivals_rng)
    arrivals = workload.arrivals
    assert arrivals is not None
    assert workload.num_requests is not None
    assert workload.output_tokens is not None
    count = workload.num_requests
    refuse_if_larger_than_memory(count * BYTES_PER_REQUEST, f"workload.num_requests: {count} requests")
    if workload.sessions is not None:
        return _sessions(workload, workload.sessions, count, seed)
    if arrivals.stages is None:
        arrival_s, stages, place = arrival_times(arrivals, count, arrivals_rng), None, np.arange(count)
    else:
        arrival_s, stages, place = _stages(arrivals, count, arrivals_rng)
    output_tokens = draw_lengths(workload.output_tokens, count, output_rng)
    if workload.shared_prefixes is not None:
        input_tokens, hashes = _shared_prefixes(workload.shared_prefixes, place, output_tokens, input_rng)
    else:
        assert workload.input_tokens is not None
        input_tokens, hashes = draw_lengths(workload.input_tokens, count, input_rng), None
    return RequestStream(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_concurrency=arrivals.max_concurrency,
        prefix_hashes=hashes,
        answers_hashed=hashes is not None,
        stages=stages,
    )


def _stages(arrivals: ArrivalsConfig, most: int, rng: np.random.Generator) -> tuple[FloatArray, LoadStages, IntArray]:
    """Arrival times of a load test's first ``most`` requests, its stages, and the place of each request in its stage.

    The arrivals of a stage divide its seconds as gaps of the process divide their sum; Poisson arrivals are then
    uniformly distributed over the stage, as they are for a known number of arrivals.
    """
    assert arrivals.stages is not None
    counts = np.array(arrivals.stage_requests)
    seconds = np.array([stage.seconds for stage in arrivals.stages])
    begin_s = np.cumsum(seconds) - seconds
    times = []
    for stage, count, start_s in zip(arrivals.stages, counts.tolist(), begin_s, strict=True):
        if arrivals.process == "constant":
            own_s = np.arange(count) / stage.rate
        else:
            gaps = rng.gamma(arrivals.burstiness or 1.0, 1.0, count + 1)
            own_s = np.cumsum(gaps[:count]) * (stage.seconds / max(gaps.sum(), np.finfo(float).tiny))
        times.append(start_s + own_s)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    drain_s = None if arrivals.drain is False else 0.0 if arrivals.drain is True else arrivals.drain
    stages = LoadStages(np.repeat(np.arange(len(counts)), counts)[:most], begin_s, drain_s)
    return np.concatenate(times)[:most], stages, place[:most]


def _shared_prefixes(
    shared: SharedPrefixesConfig, place: IntArray, output_tokens: IntArray, rng: np.random.Generator
) -> tuple[IntArray, PrefixHashes]:
    """Prompt lengths and prefix hashes of requests that send the prompts of all groups in one shuffled order.

    Source: inference-perf, its shared-prefix data generator and load generator (August 2026).
    """
    prompts, per_block = shared.groups * shared.prompts, shared.block_tokens
    refuse_if_larger_than_memory(prompts * BYTES_PER_REQUEST, f"workload.shared_prefixes: {prompts} prompts")
    system = draw_lengths(shared.system_tokens, shared.groups, rng)
    question = draw_lengths(shared.question_tokens, prompts, rng)
    prompt = rng.permutation(prompts)[place % prompts]
    group = prompt // shared.prompts
    input_tokens = system[group] + question[prompt]
    blocks = (input_tokens + output_tokens - 1) // per_block
    refuse_if_larger_than_memory(
        int(blocks.sum()) * BYTES_PER_HASH,
        f"workload.shared_prefixes: {blocks.sum()} prefix hashes of {per_block} tokens (shared_prefixes.block_tokens)",
    )
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    owner = np.repeat(np.arange(len(place)), blocks)
    position = np.arange(offsets[-1]) - offsets[owner]
    of_group, of_prompt = int(system.max()) // per_block + 1, int((system.max() + question.max()) // per_block) + 1
    first_prompt = shared.groups * of_group
    first_answer = first_prompt + prompts * of_prompt
    ids = np.where(
        position < system[group[owner]] // per_block,
        group[owner] * of_group + position,
        np.where(
            position < input_tokens[owner] // per_block,
            first_prompt + prompt[owner] * of_prompt + position,
            first_answer + np.arange(offsets[-1]),
        ),
    )
    return input_tokens, PrefixHashes(offsets, ids, per_block)


def _warm_up(warm_up: WarmUpConfig, stream: RequestStream) -> BoolArray:
    """True for the requests of a warm-up."""
    if warm_up.requests is not None:
        return np.arange(len(stream)) < warm_up.requests
    if warm_up.seconds is not None:
        return np.asarray(stream.arrival_s < warm_up.seconds)
    assert stream.stages is not None
    return np.asarray(stream.stages.of < (warm_up.stages or 0))


def _priorities(priorities: tuple[int, ...], stream: RequestStream, seed: int) -> IntArray:
    drawn = np.random.default_rng([seed, 0x9107]).choice(np.asarray(priorities, dtype=np.int64), len(stream))
    for before, waiting in () if stream.follows is None else stream.follows.tolist():
        drawn[waiting] = drawn[before]
    return drawn


def _sessions(workload: WorkloadConfig, sessions: SessionsConfig, count: int, seed: int) -> RequestStream:
    """Generate ``count`` turns of conversations, session after session, with prefix hashes of the preceding turns."""
    assert workload.arrivals is not None
    assert workload.input_tokens is not None
    assert workload.output_tokens is not None
    rngs = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(6)]
    turns = np.minimum(draw_lengths(sessions.turns, count, rngs[3]), count)
    firsts = np.cumsum(turns) - turns
    turns = np.minimum(turns, count - firsts)[firsts < count]
    firsts = firsts[: len(turns)]
    starts = arrival_times(workload.arrivals, len(turns), rngs[0])
    session = np.repeat(np.arange(len(turns)), turns)
    new = draw_lengths(workload.input_tokens, count, rngs[1])
    output = draw_lengths(workload.output_tokens, count, rngs[2])
    turn_tokens = np.cumsum(new + output)
    before = turn_tokens - new - output
    prompts = sessions.system_prompt_tokens + before - before[firsts][session] + new
    application = rngs[5].integers(sessions.system_prompts, size=len(turns))
    per_block = sessions.block_tokens
    shared = sessions.system_prompt_tokens // per_block
    blocks = (prompts + output - 1) // per_block
    hashes = int(blocks.sum())
    refuse_if_larger_than_memory(
        hashes * BYTES_PER_HASH,
        f"workload.sessions: {hashes} prefix hashes of {per_block} tokens (sessions.block_tokens)",
    )
    last = blocks[firsts + turns - 1]
    bases = sessions.system_prompts * shared + np.cumsum(last) - last
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    owner = np.repeat(session, blocks)
    ids = np.where(position < shared, application[owner] * shared + position, bases[owner] + position)
    later = np.setdiff1d(np.arange(count), firsts)
    return RequestStream(
        arrival_s=starts[session],
        input_tokens=prompts,
        output_tokens=output,
        max_concurrency=None,
        prefix_hashes=PrefixHashes(offsets, ids, per_block),
        answers_hashed=True,
        follows=np.column_stack([later - 1, later]),
        think_s=rngs[4].exponential(sessions.think_time_s, count),
    )


def _trace_table(workload: WorkloadConfig, trace: str) -> RequestTable:
    """Requests of a trace; the last table read is reused for the same file and fields."""
    from traces import read_requests  # a run without a trace does without the readers
    from traces.catalogue import resolve

    columns = None if workload.columns is None else tuple(workload.columns.items())
    skipped = workload.skip_requests
    limit = None if workload.num_requests is None else workload.num_requests + skipped
    key: tuple[object, ...] = (trace, workload.format, workload.on_error, limit, skipped, columns)
    file = resolve(trace)
    if file.is_file():
        state = file.stat()
        key += (file.resolve(), state.st_mtime_ns, state.st_size)

    def read_rows(most: int | None) -> RequestTable:
        return read_requests(
            trace,
            format=workload.format,
            on_error=workload.on_error,
            limit=most,
            columns=workload.columns,  # type: ignore[arg-type]  # keys are words of a list
        )

    def read() -> RequestTable:
        if limit is None:
            _refuse_trace_larger_than_memory(file, read_rows)
        table = read_rows(limit)
        if not skipped:
            return table
        if skipped >= len(table):
            raise ForerunError(f"workload.skip_requests: {skipped} skipped, {trace} has {len(table)} requests")
        return table.take(slice(skipped, None)).from_time_zero()

    return _RECENT_TRACE.get(key, read) if file.is_file() else read()


def trace_began_s(workload: WorkloadConfig) -> float | None:
    """Start time of a workload's trace by the trace's clock, seconds since 1970; None without a trace or dates."""
    return None if workload.trace is None else _trace_table(workload, workload.trace).began_s


def _refuse_trace_larger_than_memory(file: Path, read_rows: Callable[[int], RequestTable]) -> None:
    """Refuse a large trace that, estimated from its first requests, does not fit into memory."""
    if not file.is_file() or file.stat().st_size < LARGE_FILE or file.suffix in (".gz", ".zst", ".parquet", ".json"):
        return
    first = read_rows(FIRST_ROWS)
    with file.open("rb") as lines:
        read_bytes = sum(len(line) for line in islice(lines, FIRST_ROWS))
    requests = len(first) * file.stat().st_size / read_bytes
    hashes = 0 if first.prefix_hashes is None else len(first.prefix_hashes.ids) / len(first)
    needed = requests * (BYTES_PER_REQUEST + BYTES_PER_HASH * hashes)
    refuse_if_larger_than_memory(needed, f"workload.num_requests: all of {file}, about {requests:,.0f} requests,")


_RECENT_TRACE: RecentResults[RequestTable] = RecentResults(2)
"""Cache of two tables (tables are large): a trace, and the part of it that a study replays."""


def _from_trace(workload: WorkloadConfig, trace: str, rng: np.random.Generator) -> RequestStream:
    table = _trace_table(workload, trace)
    count = len(table.input_tokens)
    arrivals = workload.arrivals
    follows = table.follows if table.follows is not None and len(table.follows) else None
    notes = _trace_notes(trace, table, workload.num_requests)
    if follows is not None and arrivals is not None and arrivals.max_concurrency is not None:
        notes.append(f"{trace}: but a closed loop sends them in turn, whatever they wait for")
        follows = None
    if arrivals is None or arrivals.process == "trace":
        if table.arrival_s is None:
            raise ForerunError(
                f"workload.trace: {trace} ({table.format}) has no arrival times; give workload.arrivals a process"
            )
        scale = 1.0 if arrivals is None else arrivals.rate_scale
        arrival_s = np.asarray(table.arrival_s, dtype=np.float64) / scale
        max_concurrency = None
    else:
        begins = np.ones(count, dtype=np.bool_)
        begins[[] if follows is None else follows[:, 1]] = False
        arrival_s = arrival_times(arrivals, int(begins.sum()), rng)[np.cumsum(begins) - 1]
        max_concurrency = arrivals.max_concurrency
    hashes, answers_hashed = table.prefix_hashes, False
    if hashes is not None:  # those of prompts and answers reach beyond the prompt
        prompt_blocks = -(-np.asarray(table.input_tokens) // hashes.block_tokens)
        answers_hashed = bool(np.any(np.diff(hashes.offsets) > prompt_blocks))
    return RequestStream(
        arrival_s=arrival_s,
        input_tokens=np.asarray(table.input_tokens, dtype=np.int64),
        output_tokens=np.asarray(table.output_tokens, dtype=np.int64),
        max_concurrency=max_concurrency,
        prefix_hashes=hashes,
        answers_hashed=answers_hashed,
        notes=tuple(notes),
        follows=follows,
        think_s=None if follows is None else _waits_s(table, follows),
    )


def _waits_s(table: RequestTable, follows: IntArray) -> FloatArray:
    """Seconds from the end of a request's last predecessor to its arrival (tools, users). The value is from the trace's
    times, else its think time, else 0."""
    before, waiting = follows.T
    think_s = np.zeros(len(table)) if table.think_time_s is None else np.nan_to_num(table.think_time_s)
    if table.arrival_s is None or table.measured_e2e_s is None:
        return think_s
    ends = np.full(len(table), -np.inf)
    np.maximum.at(ends, waiting, (table.arrival_s + table.measured_e2e_s)[before])  # NaN where one is not known
    return np.where(np.isfinite(ends), np.maximum(table.arrival_s - ends, 0.0), think_s)


def _trace_notes(trace: str, table: RequestTable, workload: int | None) -> list[str]:
    count = len(table.input_tokens)
    if workload is not None and count < workload:
        short = f"workload.num_requests: {workload} requested, {trace} has {count}: all of them were run"
        return [short, *_trace_notes(trace, table, None)]
    skipped = [f"{trace}: skipped {count} rows ({reason})" for reason, count in sorted(table.skipped.items())]
    waits = 0 if table.follows is None else len(np.unique(table.follows[:, 1]))
    notes = [f"{trace}: {waits} of {count} requests wait until others have ended"] if waits else []
    return [*skipped, *notes, *(f"{trace}: {note}" for note in table.notes)]


def arrival_times(arrivals: ArrivalsConfig, count: int, rng: np.random.Generator) -> FloatArray:
    """Arrival times of ``count`` requests, seconds, non-decreasing; the first gap counts from time 0.

    Source: gamma inter-arrival times with shape ``burstiness`` as vLLM's serving benchmark draws them.
    """
    if arrivals.process in ("burst", "closed-loop"):
        return np.zeros(count)
    rate = arrivals.request_rate
    assert rate is not None
    if arrivals.process == "constant":
        times: FloatArray = np.arange(count, dtype=np.float64) / rate
    else:
        shape = arrivals.burstiness if arrivals.burstiness is not None else 1.0
        times = np.cumsum(rng.gamma(shape, 1.0 / (rate * shape), count))
    return times if arrivals.profile is None else varied(times, arrivals.profile)


def varied(times: FloatArray, profile: Sequence[tuple[float, float]]) -> FloatArray:
    """Map arrivals at a constant rate to arrivals at a rate that follows ``profile``.

    The integral of the factor up to the n-th arrival is the time at which it would arrive at factor 1 (time rescaling;
    E. Cinlar, "Introduction to Stochastic Processes", 1975, section 4.7).
    """
    at_s, factor = (np.array(column, dtype=np.float64) for column in zip(*profile, strict=True))
    width, rise = np.diff(at_s), np.diff(factor)
    passed = np.concatenate([[0.0], np.cumsum((factor[:-1] + factor[1:]) / 2 * width)])
    rounds, rest = np.divmod(times, passed[-1])
    part = np.clip(np.searchsorted(passed, rest, side="right") - 1, 0, len(width) - 1)
    rest = rest - passed[part]
    first, slope = factor[part], rise[part] / width[part]
    root = first + np.sqrt(np.maximum(first * first + 2 * slope * rest, 0.0))
    within = np.divide(2 * rest, root, out=np.zeros_like(rest), where=root > 0)
    varied_s: FloatArray = rounds * at_s[-1] + at_s[part] + np.minimum(within, width[part])
    return varied_s


def draw_lengths(lengths: int | LengthConfig, count: int, rng: np.random.Generator) -> IntArray:
    """Draw ``count`` token counts, each at least 1."""
    if isinstance(lengths, int):
        return np.full(count, lengths, dtype=np.int64)
    if lengths.distribution == "constant":
        assert lengths.value is not None
        return np.full(count, lengths.value, dtype=np.int64)
    if lengths.distribution == "uniform":
        assert lengths.min is not None
        assert lengths.max is not None
        return rng.integers(lengths.min, lengths.max, count, endpoint=True, dtype=np.int64)
    if lengths.distribution == "empirical":
        values = lengths.values if lengths.file is None else read_lengths(lengths.file)
        return rng.choice(np.asarray(values, dtype=np.int64), count)
    assert lengths.mean is not None
    assert lengths.cv is not None
    draws = lognormal(lengths.mean, lengths.cv, count, rng)
    return np.clip(np.rint(draws), 1, lengths.max if lengths.max is not None else 10**12).astype(np.int64)


def read_lengths(file: str) -> list[int]:
    """Read token counts from a text file: integers from 1 to 1e12, separated by spaces, commas or line ends."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ForerunError(f"{file}: cannot be read as token counts ({reason})") from None
    counts = []
    for number, line in enumerate(text.splitlines(), start=1):
        for word in line.replace(",", " ").split():
            if not (word.isascii() and word.isdigit() and len(word) <= 13 and 1 <= int(word) <= 10**12):
                raise ForerunError(f"{file}:{number}: '{word[:40]}' is no token count (a whole number from 1)")
            counts.append(int(word))
    if not counts:
        raise ForerunError(f"{file}: no token count in it")
    return counts


def cut_mean(mean: float, cv: float, most: float) -> float:
    """Mean of a lognormal distribution whose draws above ``most`` become ``most``.

    E[min(X, c)] = mean Phi((ln c - mu) / sigma - sigma) + c (1 - Phi((ln c - mu) / sigma))

    >>> round(cut_mean(512.0, 8.0, 600.0)), round(cut_mean(512.0, 0.8, 4096.0))
    (170, 512)
    """
    sigma = math.sqrt(math.log1p(cv * cv))
    place = (math.log(most) - math.log(mean) + sigma * sigma / 2) / sigma
    below, above = math.erfc((sigma - place) / math.sqrt(2)) / 2, math.erfc(place / math.sqrt(2)) / 2
    return mean * below + most * above


def _cut_notes(workload: WorkloadConfig) -> list[str]:
    """One note per lognormal distribution whose mean is much lower after the cut at its ``max``."""
    notes = []
    for name in ("input_tokens", "output_tokens"):
        lengths = getattr(workload, name)
        if isinstance(lengths, LengthConfig) and lengths.mean is not None and lengths.max is not None:
            left = cut_mean(lengths.mean, lengths.cv or 0.0, lengths.max)
            if left < MOST_CUT * lengths.mean:
                means = f"a mean of {left:.0f} of {lengths.mean:g} tokens"
                notes.append(f"workload.{name}: the cut at max {lengths.max} leaves {means}")
    return notes


def lognormal(mean: float, cv: float, count: int, rng: np.random.Generator) -> FloatArray:
    """Lognormal draws with the given mean and coefficient of variation.

    ``sigma^2 = ln(1 + cv^2)`` and ``mu = ln(mean) - sigma^2 / 2``.
    """
    sigma = math.sqrt(math.log1p(cv * cv))
    return rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma, count)


def conversation(workload: WorkloadConfig) -> tuple[float, float]:
    """Mean turns of a session, and seconds until the load stops rising; (1, 0) without sessions.

    The load rises until long conversations among the first arrivals have ended; answers are assumed to take as long as
    the user's think time.
    """
    if workload.sessions is None:
        return 1.0, 0.0
    turns = draw_lengths(workload.sessions.turns, SESSION_DRAWS, np.random.default_rng(0))
    return float(turns.mean()), 2.0 * (float(np.percentile(turns, 99)) - 1.0) * workload.sessions.think_time_s
