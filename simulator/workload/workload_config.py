"""The ``workload`` section of a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from forerun.types import LONGEST_S, PositiveFloat, PositiveInt, PositiveSeconds, Section, Share

LARGEST_MEAN = 1e9
LARGEST_CV = 1e3
IMPLIED = {"max_concurrency": "closed-loop", "burstiness": "gamma", "request_rate": "poisson"}
"""Arrival process implied by a field if ``process`` is not set; the first field that is set decides."""
NonEmptyTokens = Annotated[list[PositiveInt], Field(min_length=1)]
RatePoint = Annotated[tuple[float, float], Field(strict=False)]


def _pairs(points: object) -> object:
    if isinstance(points, list | tuple) and all(isinstance(p, list | tuple) and len(p) == 2 for p in points):
        return points
    raise ValueError("a list of points [seconds, factor on request_rate] expected, such as [[0, 0.5], [3600, 2]]")


class ArrivalsConfig(Section):
    """Arrival process of requests.

    ``poisson``, ``gamma`` and ``constant`` need ``request_rate``; ``burst`` sends everything at time 0;
    ``closed-loop`` keeps ``max_concurrency`` requests outstanding; ``trace`` replays the trace's own times.
    """

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.pop("required"))  # `process` may be implied

    process: Literal["poisson", "gamma", "constant", "burst", "closed-loop", "trace"]
    """Arrival process; default: ``closed-loop`` if ``max_concurrency`` is set, else ``gamma`` if ``burstiness`` is set,
    else ``poisson`` if ``request_rate`` is set."""
    request_rate: PositiveFloat | None = None
    """Mean arrival rate, requests per second."""
    burstiness: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None
    """Shape of the gamma inter-arrival times: 1 is Poisson, smaller is burstier (CV = 1/sqrt(burstiness))."""
    max_concurrency: PositiveInt | None = None
    """Maximum outstanding requests in a closed loop."""
    profile: Annotated[tuple[RatePoint, ...], Field(strict=False), BeforeValidator(_pairs)] | None = None
    """Rate over time: (seconds, factor on ``request_rate``) points from 0 on, linearly interpolated and repeated
    after the last point."""
    rate_scale: PositiveFloat = 1.0
    """Speed factor of the replay of trace arrivals; 2 = twice as fast."""

    @model_validator(mode="before")
    @classmethod
    def _implied_process(cls, data: object) -> object:
        if isinstance(data, dict) and "process" not in data:
            implied = next((IMPLIED[name] for name in IMPLIED if data.get(name) is not None), None)
            return data if implied is None else {"process": implied, **data}
        return data

    @model_validator(mode="after")
    def _fields_fit_process(self) -> ArrivalsConfig:
        if self.profile is not None:
            if self.request_rate is None:
                raise ValueError(f"process '{self.process}' has no use for profile; remove it")
            _check_profile(self.profile)
        wanted = {
            "poisson": {"request_rate"},
            "gamma": {"request_rate", "burstiness"},
            "constant": {"request_rate"},
            "closed-loop": {"max_concurrency"},
        }.get(self.process, set())
        fields = ("request_rate", "burstiness", "max_concurrency")
        _check_fields(self, f"process '{self.process}'", fields, wanted, wanted)
        if self.rate_scale != 1.0 and self.process != "trace":
            instead = " and set request_rate instead" if "request_rate" in wanted else ""
            raise ValueError(f"process '{self.process}' has no use for rate_scale; remove it{instead}")
        return self


def _check_fields(section: Section, kind: str, fields: Sequence[str], needed: set[str], allowed: set[str]) -> None:
    """Refuse a field that is needed and missing, or set and not allowed."""
    for name in fields:
        is_set = getattr(section, name) is not None
        if name in needed and not is_set:
            raise ValueError(f"{kind} needs {name}")
        if is_set and name not in allowed:
            raise ValueError(f"{kind} has no use for {name}; remove it")


def _check_profile(points: Sequence[tuple[float, float]]) -> None:
    times, factors = [at_s for at_s, _ in points], [factor for _, factor in points]
    if len(points) < 2 or times[0] != 0 or any(later <= before for before, later in pairwise(times)):
        raise ValueError("profile: at least two points, the first at 0 s, the others later and later, expected")
    if not all(0 <= factor <= LARGEST_MEAN for factor in factors) or not any(factors) or not times[-1] <= LONGEST_S:
        raise ValueError("profile: factors of at least 0, not all of them 0, expected")


class LengthConfig(Section):
    """A distribution of token counts; draws are rounded, at least 1, and cut to ``max`` if it is set."""

    distribution: Literal["constant", "uniform", "lognormal", "empirical"]
    """Name of the distribution."""
    value: PositiveInt | None = None
    """Tokens of every request (constant)."""
    min: PositiveInt | None = None
    """Smallest count (uniform)."""
    max: PositiveInt | None = None
    """Largest count (uniform), or the cut of a lognormal tail: longer draws become ``max``."""
    mean: Annotated[PositiveFloat, Field(le=LARGEST_MEAN)] | None = None
    """Mean before rounding and cutting (lognormal)."""
    cv: Annotated[float, Field(ge=1e-6, le=LARGEST_CV)] | None = None
    """Coefficient of variation, standard deviation over mean (lognormal)."""
    values: NonEmptyTokens | None = None
    """Counts drawn with equal chance (empirical); or give ``file``."""
    file: str | None = None
    """File of counts: integers separated by spaces, commas or line ends (empirical)."""

    @model_validator(mode="after")
    def _fields_fit_distribution(self) -> LengthConfig:
        needed = {
            "constant": {"value"},
            "uniform": {"min", "max"},
            "lognormal": {"mean", "cv"},
            "empirical": {"values"} if self.file is None else {"file"},
        }[self.distribution]
        allowed = needed | {"max"} if self.distribution == "lognormal" else needed
        fields = ("value", "min", "max", "mean", "cv", "values", "file")
        _check_fields(self, f"distribution '{self.distribution}'", fields, needed, allowed)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is larger than max {self.max}")
        if self.mean is not None and self.max is not None and self.mean > self.max:
            raise ValueError(f"mean {self.mean:g} is larger than max {self.max}, to which longer draws are cut")
        return self


class SessionsConfig(Section):
    """Conversations: each turn's prompt is the system prompt, all earlier turns with their answers, and new tokens.

    ``workload.arrivals`` then sets session starts, ``input_tokens`` the new tokens per turn, ``output_tokens`` the
    tokens of its answer, and ``num_requests`` the total number of turns. A turn is sent ``think_time_s`` (on average)
    after the end of the previous answer.
    """

    turns: PositiveInt | LengthConfig
    """Turns of a session: a number for every session, or a distribution."""
    think_time_s: PositiveSeconds
    """Mean time from the end of an answer to the next turn, exponentially distributed."""
    system_prompt_tokens: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Tokens of the system prompt that all sessions of one application share."""
    system_prompts: PositiveInt = 1
    """Number of applications, each with a different system prompt; a session belongs to each with equal probability."""
    block_tokens: PositiveInt = 16
    """Tokens per prefix hash; a multiple of ``engine.block_size``."""


class SpeculativeToolsConfig(Section):
    """Tool calls guessed before the turn that requests them has ended, for requests that wait for predecessors.

    The pause before such a request is its tool's duration. A right guess starts the tool early, so the request arrives
    when tool and turn have both ended; a wrong guess is cancelled when the turn ends, and the right tool starts.
    """

    hit_rate: Share
    """Share of tool calls guessed right."""
    guessed_at: Share = 0.0
    """Share of a turn's duration after which its tool call is guessed."""


ARRIVING = {"req/s": "requests", "conversations/s": "conversations"}
"""Noun for arrivals, by the unit of their rate."""


def rate_unit(workload: Mapping[str, object]) -> str:
    """Unit of ``arrivals.request_rate`` in a ``workload`` section given as plain data.

    >>> rate_unit({"sessions": {"turns": 4, "think_time_s": 5.0}})
    'conversations/s'
    """
    return "req/s" if workload.get("sessions") is None else "conversations/s"


class WorkloadConfig(Section):
    """Arrival times and lengths, or a trace with both."""

    arrivals: ArrivalsConfig | None = None
    input_tokens: PositiveInt | LengthConfig | None = None
    """Prompt tokens: a number for every request, or a distribution."""
    output_tokens: PositiveInt | LengthConfig | None = None
    """Generated tokens, the first token included."""
    num_requests: PositiveInt | None = None
    """Number of requests; with a trace, number of its rows to use (default: all)."""
    skip_requests: Annotated[int, Field(ge=0, le=10**12)] = 0
    """Number of rows of the trace to skip; later rows arrive as if the trace began after the skipped rows."""
    priorities: Annotated[tuple[Annotated[int, Field(ge=-(10**9), le=10**9)], ...], Field(strict=False)] | None = None
    """Priorities drawn with equal chance for each request (each session); lower goes first under ``engine.scheduler:
    priority``. Default: 0 for all."""
    sessions: SessionsConfig | None = None
    """Conversations of several turns; default: independent requests."""
    speculative_tools: SpeculativeToolsConfig | None = None
    """Tool calls that start before the turn that requests them has ended; default: none."""
    trace: str | None = None
    """Path or catalogue name of a request trace."""
    format: str = "auto"
    """Trace format, or ``auto`` to recognise it by content."""
    columns: dict[Literal["arrival", "input", "output", "session", "ttft", "e2e"], str] | None = None
    """Trace columns by meaning, if their names are ambiguous, e.g. ``{arrival: ts, input: toks}``; a time unit may
    follow (``ts:ms``). Default: recognised or guessed, with a note."""
    on_error: Literal["stop", "skip"] = "stop"
    """Handling of bad trace rows: stop with file and line, or count and skip them."""

    @property
    def open_loop(self) -> bool:
        """True if arrival times do not depend on the engine."""
        arrivals = self.arrivals
        return self.sessions is None and (arrivals is None or arrivals.process not in ("burst", "closed-loop"))

    @property
    def rate_unit(self) -> str:
        return rate_unit({"sessions": self.sessions})

    @property
    def random(self) -> bool:
        """True if any part of the requests is random: arrivals, lengths, sessions, priorities."""
        drawn = self.arrivals is not None and self.arrivals.process in ("poisson", "gamma")
        lengths = (self.input_tokens, self.output_tokens) if self.trace is None else ()
        drawn = drawn or any(isinstance(one, LengthConfig) and one.distribution != "constant" for one in lengths)
        return drawn or any(one is not None for one in (self.sessions, self.priorities, self.speculative_tools))

    @model_validator(mode="after")
    def _trace_or_synthetic(self) -> WorkloadConfig:
        if self.priorities == ():
            raise ValueError("priorities: must not be empty; leave it out, or give whole numbers")
        if self.trace is None and self.sessions is None and self.speculative_tools is not None:
            raise ValueError("speculative_tools goes with sessions, or with a trace whose requests wait for each other")
        if self.trace is not None:
            for name in ("input_tokens", "output_tokens", "sessions"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} comes from the trace; remove one of the two (--set workload='{{trace: {self.trace}}}' "
                        "replaces the whole section)"
                    )
            return self
        for name in ("format", "columns", "on_error", "skip_requests"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is about a trace and there is none; remove it, or give trace")
        for name in ("arrivals", "input_tokens", "output_tokens", "num_requests"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is missing (needed unless trace is given)")
        if self.arrivals is not None and self.arrivals.process == "trace":
            raise ValueError("arrivals.process 'trace' needs workload.trace")
        if self.sessions is not None and self.arrivals is not None and self.arrivals.process == "closed-loop":
            raise ValueError("sessions cannot be combined with closed-loop arrivals; choose another arrivals.process")
        return self
