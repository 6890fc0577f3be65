"""The ``speculation.policy`` of a scenario: how many draft tokens each step drafts, and what a change costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from simulator.settings import PositiveInt, Section, Share

PolicyName = Literal["fixed", "disable-above-batch", "batch-table", "goodput", "ema"]
TABLE_NAME_IN_VLLM = "num_speculative_tokens_per_batch_size"
COMMON_FIELDS = ("name", "while_off", "switch_s")
POLICY_FIELDS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "disable-above-batch": ("batch",),
    "batch-table": ("table",),
    "goodput": ("prior", "window", "hysteresis", "interval"),
    "ema": ("candidates", "ema_alpha", "update_interval", "warmup_batches", "up_hysteresis", "down_hysteresis"),
}
"""Policies, and the parameters that each takes beside those of all that change K."""
Signed = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Candidates = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class PolicyConfig(Section):
    """A policy with its parameters; what is not given takes the policy's documented default."""

    name: PolicyName
    batch: PositiveInt | None = None
    """disable-above-batch: draft only in steps of at most so many requests; default 32 (assumed)."""
    table: list[list[int]] | None = None
    """batch-table: [first batch, last batch, draft tokens] as vLLM's ``num_speculative_tokens_per_batch_size`` (a name
    that is accepted too); default: the example of vLLM's documentation, K to 64 requests, 1 to 128, none beyond."""
    prior: Share | None = None
    """goodput: chance that a draft token is accepted, believed before any was seen; default 0.7 (assumed)."""
    window: PositiveInt | None = None
    """goodput: verify steps after which an observation has lost 1/e of its weight; default 100 (assumed)."""
    hysteresis: Annotated[float, Field(ge=0, lt=10, allow_inf_nan=False)] | None = None
    """goodput: share by which another K must be better before it replaces the present one; default 0.02 (assumed)."""
    interval: PositiveInt | None = None
    """goodput: steps between two decisions; default 1, as SmartSpec decides."""
    candidates: Candidates | dict[int, Candidates] | None = None
    """ema: draft tokens to choose from, or such a list by smallest batch; default SGLang's, 1 3 5 7 from one request,
    0 1 3 from 8, 0 1 from 32, 0 from 64."""
    ema_alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    """ema: weight of the latest step; default 0.2, as all below SGLang's own."""
    update_interval: PositiveInt | None = None
    """ema: steps between two decisions; default 5."""
    warmup_batches: Annotated[int, Field(ge=0)] | None = None
    """ema: steps before the first; default 10."""
    up_hysteresis: Signed | None = None
    """ema: accepted tokens beyond the threshold needed to draft more; default 0."""
    down_hysteresis: Signed | None = None
    """ema: accepted tokens added to the threshold under which fewer are drafted; default as SGLang's, -0.25 for
    batches below 8 and 0 from there on."""
    while_off: Literal["idle", "follow"] | None = None
    """What the drafter does in steps without drafts: ``idle`` (default) and pay when it resumes, by putting the skipped
    tokens into its cache; or ``follow``, one pass in every step, as vLLM keeps the caches alike."""
    switch_s: Annotated[float, Field(ge=0, lt=60, allow_inf_nan=False)] | None = None
    """Host seconds of each change of K beside the drafter's catching up; default 0 (assumed)."""

    @model_validator(mode="before")
    @classmethod
    def _own_name_of_the_table(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and TABLE_NAME_IN_VLLM in data and "table" not in data:
            data = {("table" if key == TABLE_NAME_IN_VLLM else key): value for key, value in data.items()}
        return data

    @field_validator("table")
    @classmethod
    def _ranges(cls, table: list[list[int]] | None) -> list[list[int]] | None:
        if table is not None:
            check_table(table)
        return table

    @field_validator("candidates", mode="before")
    @classmethod
    def _keys_of_json(cls, candidates: Any) -> Any:
        if not isinstance(candidates, Mapping):
            return candidates
        return {int(key) if isinstance(key, str) and key.isdecimal() else key: v for key, v in candidates.items()}

    @field_validator("candidates")
    @classmethod
    def _from_one(cls, candidates: list[int] | dict[int, list[int]] | None) -> list[int] | dict[int, list[int]] | None:
        if isinstance(candidates, dict) and (not candidates or min(candidates) < 1):
            raise ValueError("candidates by batch need batch sizes >= 1, for example {1: [1, 3], 8: [0, 1]}")
        return candidates

    @model_validator(mode="after")
    def _only_its_own(self) -> PolicyConfig:
        fields = POLICY_FIELDS[self.name] + (COMMON_FIELDS[1:] if self.name != "fixed" else ())
        for name in sorted(self.model_fields_set - {"name"}):
            if name not in fields and getattr(self, name) is not None:
                takes = f"it takes {', '.join(fields)}" if fields else "it takes no parameters"
                raise ValueError(f"policy '{self.name}' has no use for {name} ({takes})")
        return self


def check_table(table: Sequence[Sequence[int]]) -> None:
    """Check a table of [first batch, last batch, draft tokens] as vLLM does.

    Raises:
        ValueError: empty, an empty or overlapping range, a first range that does not start at 1, or K < 0.

    Source: ``vllm/v1/spec_decode/dynamic/utils.py``, vLLM 0.25 to 0.28.
    """
    if not table:
        raise ValueError("table must hold at least one [first batch, last batch, draft tokens]")
    for row in table:
        if len(row) != 3:
            raise ValueError(f"table: each row is [first batch, last batch, draft tokens] (got {list(row)})")
    end = 0
    for first, last, tokens in sorted(map(tuple, table)):
        if first < 1 or last < first:
            raise ValueError(f"table: [{first}, {last}, {tokens}] is no range of batch sizes (1 <= first <= last)")
        if tokens < 0:
            raise ValueError(f"table: [{first}, {last}, {tokens}] must draft 0 tokens or more")
        if end == 0 and first != 1:
            raise ValueError(f"table: the first range must start at 1, so that every batch has a K (got {first})")
        if first <= end:
            raise ValueError(f"table: ranges overlap at batch {first}")
        end = last


def named(policy: PolicyName | PolicyConfig) -> PolicyConfig:
    """The policy with its parameters, from its plain name too."""
    return PolicyConfig(name=policy) if isinstance(policy, str) else policy
