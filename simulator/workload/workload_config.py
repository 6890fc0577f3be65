"""The ``workload`` section of a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from forerun.types import LONGEST_S, PositiveFloat, PositiveInt, PositiveSeconds, Section, Share

LARGEST_MEAN = 1e9
LARGEST_CV = 1e3
IMPLIED = {"max_concurrency": "closed-loop", "burstiness": "gamma", "request_rate": "poisson", "stages": "poisson"}
"""Arrival process implied by a field if ``process`` is not set; the first field that is set decides."""
NonEmptyTokens = Annotated[list[PositiveInt], Field(min_length=1)]
NonNegativeSeconds = Annotated[float, Field(ge=0, le=LONGEST_S)]
RatePoint = Annotated[tuple[float, float], Field(strict=False)]


def _pairs(points: object) -> object:
    if isinstance(points, list | tuple) and all(isinstance(p, list | tuple) and len(p) == 2 for p in points):
        return points
    raise ValueError("a list of points [seconds, factor on request_rate] expected, such as [[0, 0.5], [3600, 2]]")


class StageConfig(Section):
    """A part of a load test with its own arrival rate."""

    rate: PositiveFloat
    """Mean arrival rate, requests per second."""
    seconds: PositiveSeconds
    """Time over which the requests arrive; ``rate * seconds`` of them, rounded down."""


class ArrivalsConfig(Section):
    """Arrival process of requests.

    ``poisson``, ``gamma`` and ``constant`` need ``request_rate``; ``burst`` sends everything at time 0;
    ``closed-loop`` keeps ``max_concurrency`` requests outstanding; ``trace`` replays the trace's own times. ``stages``
    stand in the place of ``request_rate``.
    """

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.pop("required"))  # `process` may be implied

    process: Literal["poisson", "gamma", "constant", "burst", "closed-loop", "trace"]
    """Arrival process; default: ``closed-loop`` if ``max_concurrency`` is set, else ``gamma`` if ``burstiness`` is set,
    else ``poisson`` if ``request_rate`` or ``stages`` is set."""
    request_rate: PositiveFloat | None = None
    """Mean arrival rate, requests per second."""
    burstiness: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None
    """Shape of the gamma inter-arrival times: 1 is Poisson, smaller is burstier (CV = 1/sqrt(burstiness))."""
    max_concurrency: PositiveInt | None = None
    """Maximum outstanding requests in a closed loop."""
    profile: Annotated[tuple[RatePoint, ...], Field(strict=False), BeforeValidator(_pairs)] | None = None
    """Rate over time: (seconds, factor on ``request_rate``) points from 0 on, linearly interpolated and repeated
    after the last point."""
    stages: Annotated[tuple[StageConfig, ...], Field(strict=False, min_length=1)] | None = None
    """Load test in stages of one rate each, as inference-perf runs them. Results hold the figures of every stage."""
    drain: bool | NonNegativeSeconds = False
    """True: a stage begins when all requests of the stage before have ended (inference-perf); a number: that many
    seconds later. Default: it begins when the ``seconds`` of the stage before are over."""
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
        if self.stages is not None and "request_rate" in wanted:
            wanted = wanted - {"request_rate"} | {"stages"}
        fields = ("request_rate", "burstiness", "max_concurrency", "stages")
        _check_fields(self, f"process '{self.process}'", fields, wanted, wanted)
        if self.drain is not False and self.stages is None:
            raise ValueError("drain is about stages; remove it, or give stages")
        if self.stages is not None and not sum(self.stage_requests):
            raise ValueError("stages: none of them lasts until its first request; raise seconds or rate")
        if self.rate_scale != 1.0 and self.process != "trace":
            instead = " and set request_rate instead" if "request_rate" in wanted else ""
            raise ValueError(f"process '{self.process}' has no use for rate_scale; remove it{instead}")
        return self

    @property
    def stage_requests(self) -> list[int]:
        """Requests of each stage."""
        return [int(stage.rate * stage.seconds + 1e-9) for stage in self.stages or ()]


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


class SharedPrefixesConfig(Section):
    """Groups of prompts that begin with the same system prompt, as inference-perf's ``shared_prefix`` makes them.

    All prompts of all groups are sent in one shuffled order. Every stage begins with its first prompt, and a stage with
    more requests than there are prompts sends them again.
    """

    groups: PositiveInt
    """Number of different system prompts."""
    prompts: PositiveInt
    """Prompts of each group, with different questions."""
    system_tokens: PositiveInt | LengthConfig
    """Tokens of a system prompt: a number for every group, or a distribution."""
    question_tokens: PositiveInt | LengthConfig
    """Tokens of a question, after the system prompt."""
    block_tokens: PositiveInt = 16
    """Tokens per prefix hash; a multiple of ``engine.block_size``."""


class WarmUpConfig(Section):
    """First part of a run, which is served and left out of its latencies and rates; one of the fields."""

    requests: PositiveInt | None = None
    """Number of first requests."""
    seconds: PositiveSeconds | None = None
    """Requests that arrive within this time."""
    stages: PositiveInt | None = None
    """Number of first stages of ``arrivals.stages``."""

    @model_validator(mode="after")
    def _one_of_them(self) -> WarmUpConfig:
        if sum(value is not None for value in (self.requests, self.seconds, self.stages)) != 1:
            raise ValueError("give one of requests, seconds, stages")
        return self


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
    shared_prefixes: SharedPrefixesConfig | None = None
    """Prompts in groups that share a system prompt, in place of ``input_tokens``; ``num_requests`` is by default what
    the stages send, else each prompt once."""
    warm_up: WarmUpConfig | None = None
    """Requests left out of latencies and rates, such as ``{requests: 200}``; default: none."""
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
        if arrivals is not None and (arrivals.process in ("burst", "closed-loop") or arrivals.drain is not False):
            return False
        return self.sessions is None

    @property
    def rate_unit(self) -> str:
        return rate_unit({"sessions": self.sessions})

    @property
    def random(self) -> bool:
        """True if any part of the requests is random: arrivals, lengths, sessions, priorities."""
        drawn = self.arrivals is not None and self.arrivals.process in ("poisson", "gamma")
        drawn = drawn or self.shared_prefixes is not None
        lengths = (self.input_tokens, self.output_tokens) if self.trace is None else ()
        drawn = drawn or any(isinstance(one, LengthConfig) and one.distribution != "constant" for one in lengths)
        return drawn or any(one is not None for one in (self.sessions, self.priorities, self.speculative_tools))

    @model_validator(mode="after")
    def _trace_or_synthetic(self) -> WorkloadConfig:
        if self.priorities == ():
            raise ValueError("priorities: must not be empty; leave it out, or give whole numbers")
        if self.trace is None and self.sessions is None and self.speculative_tools is not None:
            raise ValueError("speculative_tools goes with sessions, or with a trace whose requests wait for each other")
        stages = None if self.arrivals is None else self.arrivals.stages
        if stages is not None and (self.trace is not None or self.sessions is not None):
            raise ValueError("arrivals.stages go with neither a trace nor sessions; set arrivals.request_rate instead")
        if self.warm_up is not None and self.warm_up.stages is not None and self.warm_up.stages >= len(stages or ()):
            raise ValueError("warm_up.stages: must be fewer than the arrivals.stages")
        if self.trace is not None:
            for name in ("input_tokens", "output_tokens", "sessions", "shared_prefixes"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} comes from the trace; remove one of the two (--set workload='{{trace: {self.trace}}}' "
                        "replaces the whole section)"
                    )
            return self
        for name in ("format", "columns", "on_error", "skip_requests"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is about a trace and there is none; remove it, or give trace")
        self._implied_requests()
        prompts = "input_tokens" if self.shared_prefixes is None else "shared_prefixes"
        if self.shared_prefixes is not None:
            for name in ("input_tokens", "sessions"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} and shared_prefixes both describe the prompts; remove one of the two")
        missing = [n for n in ("arrivals", prompts, "output_tokens", "num_requests") if getattr(self, n) is None]
        if missing:
            verb = "are" if missing[1:] else "is"
            raise ValueError(f"{', '.join(missing)} {verb} missing (needed unless trace is given)")
        if self.arrivals is not None and self.arrivals.process == "trace":
            raise ValueError("arrivals.process 'trace' needs workload.trace")
        if self.sessions is not None and self.arrivals is not None and self.arrivals.process == "closed-loop":
            raise ValueError("sessions cannot be combined with closed-loop arrivals; choose another arrivals.process")
        return self

    def _implied_requests(self) -> None:
        """Set ``num_requests`` to what stages or shared prefixes imply, and check a number that is given."""
        shared, stages = self.shared_prefixes, None if self.arrivals is None else self.arrivals.stages
        implied = None if shared is None else shared.groups * shared.prompts
        if self.arrivals is not None and stages is not None:
            implied = sum(self.arrivals.stage_requests)
            if self.num_requests is not None and self.num_requests > implied:
                raise ValueError(f"num_requests {self.num_requests}: the stages send {implied}; leave it out")
        if self.num_requests is None:
            self.__dict__["num_requests"] = implied
