"""The ``speculation`` section of a scenario: drafter, acceptance, tree and policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from forerun.errors import warn_renamed, with_new_names
from forerun.types import OneOf, PositiveInt, Section, Share
from simulator.speculation.curves import load_curve
from simulator.speculation.grammar import FORCED_SPAN, ForcedTokens, measured_forced
from simulator.speculation.level_decay import MOST_DECAY
from simulator.speculation.methods import METHODS
from simulator.speculation.tree import DraftTree, GrowthPlan, load_tree, tree_from_choices

Rank = Annotated[int, Field(ge=0, le=1000)]
GROWTH = ("depth", "top_k", "nodes")
CONCENTRATION = 3.0
"""Sharpness of the drafter's confidence from node to node, unless given (``drawn_confidences``). With it and EAGLE's
own chain rates a tree of 60 nodes accepts 4.2 to 5.0 tokens per step on Vicuna-7B; measured were 4.34 (Spec-Bench) and
4.98 (EAGLE-2's paper). The length moves by under 10 % between 1 and 100."""
MOST_NODES = 4096


class TreeConfig(Section):
    """A published static tree by name, a static tree by its nodes, or a grown tree (EAGLE-2)."""

    name: str | None = None
    """``medusa-63``, ``eagle-25``."""
    choices: Annotated[list[Annotated[list[Rank], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Each node as the ranks along its path, as Medusa's ``medusa_choices``: ``[[0], [1], [0, 0]]``."""
    depth: Annotated[int, Field(gt=0, le=64)] | None = None
    """Grown tree: sequential draft passes."""
    top_k: Annotated[int, Field(gt=0, le=64)] | None = None
    """Grown tree: nodes expanded per layer, and candidates of each."""
    nodes: Annotated[int, Field(gt=0, le=MOST_NODES)] | None = None
    """Grown tree: draft tokens verified, the likeliest of all that were drafted."""
    concentration: Annotated[float, Field(ge=1e-3, le=1e9)] | None = None
    """Grown tree: concentration of the beta-distributed confidence; default 3."""

    @model_validator(mode="after")
    def _one_kind(self) -> TreeConfig:
        grown = [field for field in (*GROWTH, "concentration") if getattr(self, field) is not None]
        kinds = [field for field in ("name", "choices") if getattr(self, field) is not None] + grown[:1]
        if len(kinds) != 1:
            raise ValueError(
                f"give one of name, choices, or depth with top_k and nodes (got {', '.join(kinds) or 'none'})"
            )
        missing = [field for field in GROWTH if getattr(self, field) is None]
        if grown and missing:
            raise ValueError(f"a grown tree needs depth, top_k and nodes ({', '.join(missing)} missing)")
        static = self.static
        if static is not None and static.num_nodes > MOST_NODES:
            raise ValueError(f"a tree of {static.num_nodes} nodes; at most {MOST_NODES}")
        return self

    @property
    def static(self) -> DraftTree | None:
        """The static tree; None for a grown one."""
        if self.name is not None:
            return load_tree(self.name)
        return tree_from_choices(self.choices) if self.choices is not None else None

    @property
    def growth(self) -> GrowthPlan | None:
        """Plan of a grown tree; None for a static one."""
        if self.depth is None or self.top_k is None or self.nodes is None:
            return None
        return GrowthPlan(self.depth, self.top_k, self.nodes)

    @property
    def longest_path(self) -> int:
        """Maximum draft tokens that one step can accept."""
        static = self.static
        return static.depth if static is not None else min(self.depth or 0, self.nodes or 0)


TABLE_NAME_IN_VLLM = "num_speculative_tokens_per_batch_size"
COMMON_FIELDS = ("name", "while_off", "recovery_tokens", "switch_s", "step_s", "per_sequence_s")
POLICY_FIELDS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "disable-above-batch": ("batch",),
    "batch-table": ("table",),
    "goodput": ("prior", "window", "hysteresis", "interval"),
    "ema": ("candidates", "ema_alpha", "update_interval", "warmup_batches", "up_hysteresis", "down_hysteresis"),
    "p-min": ("least", "prior", "window"),
    "entropy": ("least", "prior", "window"),
    "forerun": ("prior", "window"),
    "confidence-threshold": ("confidence_threshold",),
    "confidence-budget": ("rule", "confidence", "calibration_error", "step_s", "per_sequence_s"),
}
"""Policies by name, each with its own parameters; ``while_off`` and ``switch_s`` apply to all that change K."""
CONFIDENCE_BUDGET = "confidence-budget"
OLD_POLICIES = {"draft-gate": "confidence-threshold"}


def current_policy(name: Any) -> Any:
    """Today's name of a policy; an old one warns."""
    if isinstance(name, str) and name in OLD_POLICIES:
        warn_renamed(name, OLD_POLICIES[name])
        return OLD_POLICIES[name]
    return name


PolicyName = Annotated[str, OneOf(POLICY_FIELDS), BeforeValidator(current_policy)]
Signed = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Candidates = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class PolicyConfig(Section):
    """A policy with its parameters; unset parameters have the policy's documented default."""

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, data: Any) -> Any:
        return with_new_names(data, {"p_min": "confidence_threshold"})

    name: PolicyName
    """Name of the policy."""
    batch: PositiveInt | None = None
    """disable-above-batch: most requests of a step that drafts; default 32 (assumed)."""
    table: list[list[int]] | None = None
    """batch-table: [first batch, last batch, draft tokens] as vLLM's ``num_speculative_tokens_per_batch_size`` (a name
    that is accepted too). Default: the example of vLLM's documentation, K to 64 requests, 1 to 128, none beyond."""
    prior: Share | None = None
    """goodput, p-min, entropy, forerun: chance that a draft token is accepted, believed before any was seen. Default
    0.7 for goodput, else 0.5 (assumed)."""
    window: PositiveInt | None = None
    """goodput, p-min, entropy, forerun: verify steps after which an observation weighs 1/e. Default 100 for goodput,
    else 20 (assumed)."""
    least: Share | None = None
    """p-min: chance of being accepted below which a position is not drafted. Default 0.5. entropy: the same of AdaEDL's
    lower bound; default 0.3 (assumed)."""
    confidence_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    """confidence-threshold: a draft ends at the first token with a lower confidence of the drafter (llama.cpp's
    ``--spec-draft-p-min``); default 0.75."""
    rule: Literal["vllm", "sglang"] | None = None
    """confidence-budget: cost model of a step: ``vllm`` (default), a table by tokens; ``sglang``, a table by sequences
    and tokens."""
    confidence: Literal["calibrated", "constant", "perfect"] | None = None
    """confidence-budget: the drafter's knowledge of a draft. ``calibrated`` (default): the acceptance probability of
    each token; ``constant``: only the mean over all drafts; ``perfect``: the accepted tokens, an upper bound."""
    calibration_error: Annotated[float, Field(ge=-0.5, le=0.5, allow_inf_nan=False)] | None = None
    """confidence-budget: by how much a token's confidence exceeds its chance (expected calibration error, with a sign);
    default 0."""
    hysteresis: Annotated[float, Field(ge=0, lt=10, allow_inf_nan=False)] | None = None
    """goodput: share by which another K must be better before it replaces the present one; default 0.02 (assumed)."""
    interval: PositiveInt | None = None
    """goodput: steps between two decisions; default 1, as SmartSpec decides."""
    candidates: Candidates | dict[int, Candidates] | None = None
    """ema: draft tokens to choose from, or such a list by smallest batch. Default SGLang's, 1 3 5 7 from one request, 0
    1 3 from 8, 0 1 from 32, 0 from 64."""
    ema_alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    """ema: weight of the latest step; default 0.2, as all below SGLang's own."""
    update_interval: PositiveInt | None = None
    """ema: steps between two decisions; default 5."""
    warmup_batches: Annotated[int, Field(ge=0)] | None = None
    """ema: steps before the first decision; default 10."""
    up_hysteresis: Signed | None = None
    """ema: accepted tokens beyond the threshold needed to draft more; default 0."""
    down_hysteresis: Signed | None = None
    """ema: accepted tokens added to the threshold for drafting fewer tokens. Default as in SGLang: -0.25 for batches
    below 8, else 0."""
    while_off: Literal["idle", "follow", "starve"] | None = None
    """Drafter in steps without drafts: ``idle`` (default), which on resuming first computes the skipped
    tokens into its cache; ``follow``, one pass in every step, as vLLM does to keep both caches in sync; or ``starve``,
    which never sees the skipped tokens, so that acceptance falls until they lie far back (what TensorRT-LLM avoids by
    drafting one token at least)."""
    recovery_tokens: PositiveInt | None = None
    """while_off: starve: tokens after which a skipped one weighs 1/e; default 64 (assumed)."""
    switch_s: Annotated[float, Field(ge=0, lt=60, allow_inf_nan=False)] | None = None
    """Host seconds of each change of K, in addition to the drafter's catch-up; default 0 (assumed)."""
    step_s: Annotated[float, Field(ge=0, lt=60, allow_inf_nan=False)] | None = None
    """Host seconds that the policy adds to every step, whether or not it drafts. Default of vLLM 0.775 ms (0.27, V1
    runner, whose schedule by batch replaces full graphs: vllm-project/vllm#49548), of other engines 0; of
    confidence-budget 0.4 ms in SGLang (sgl-project/sglang#36136), else 0."""
    per_sequence_s: Annotated[float, Field(ge=0, lt=60, allow_inf_nan=False)] | None = None
    """Host seconds of the policy per sequence; default of vLLM 84 us, of other engines and confidence-budget 0."""

    @property
    def shared_settings(self) -> dict[str, Any]:
        """Settings in use that are common to all policies which change K."""
        return {name: value for name in COMMON_FIELDS[1:] if (value := getattr(self, name)) is not None}

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
        fields = POLICY_FIELDS[self.name] + (() if self.name in ("fixed", CONFIDENCE_BUDGET) else COMMON_FIELDS[1:])
        if self.recovery_tokens is not None and self.while_off != "starve":
            raise ValueError("recovery_tokens goes with while_off: starve")
        for name in sorted(self.model_fields_set - {"name"}):
            if name not in fields and getattr(self, name) is not None:
                takes = f"it takes {', '.join(fields)}" if fields else "it takes no parameters"
                raise ValueError(f"policy '{self.name}' has no use for {name} ({takes})")
        return self


def check_table(table: Sequence[Sequence[int]]) -> None:
    """Check a table of [first batch, last batch, draft tokens] as vLLM does.

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


def adaptive_policies() -> list[str]:
    """Names of the policies that choose one number of draft tokens for all sequences of a step."""
    return [name for name in POLICY_FIELDS if name not in ("fixed", "confidence-threshold", CONFIDENCE_BUDGET)]


def named(policy: PolicyName | PolicyConfig) -> PolicyConfig:
    """The settings of a policy that may be given by its name alone."""
    return PolicyConfig(name=policy) if isinstance(policy, str) else policy


Rates = Annotated[list[Share], Field(min_length=1)]
NEEDS_ACCEPTANCE = "needs acceptance"
ACCEPTANCE_SOURCES = ("per_position", "conditional", "alpha", "acceptance_length", "curve", "log")
DECAYING = ("alpha", "acceptance_length")
"""Sources of acceptance that take a ``decay``."""
OF_THIS_TREE = ("per_position", "acceptance_length", "log")
"""Sources measured on the drafted chain or tree itself. Other sources describe the drafter's first candidates;
``other_ranks`` gives the share that their siblings catch."""
TREE_POLICIES = ("fixed", "disable-above-batch")
"""Policies that draft all or nothing, which trees allow too."""
Seconds = Annotated[float, Field(ge=0, lt=60, allow_inf_nan=False)]


class DraftConfig(Section):
    """Drafter, for methods that leave a choice; unset sizes are derived from the target."""

    model: str | None = None
    """Draft model: catalogue name or path of a HF config.json. EAGLE and parallel heads: repository of a public head in
    the catalogue, whose sizes are taken."""
    weights_dtype: str | Mapping[str, str] | None = None
    """Drafter weights, in the form of the scenario's ``weights_dtype``; default: the checkpoint's, bf16 for trained
    heads."""
    tensor_parallel: PositiveInt | None = None
    """Chips that share one drafter; default: as the target."""
    chip: str | None = None
    """Chip of the drafter alone, catalogue name or path. Weights and KV of the drafter are then on it, and
    ``tensor_parallel`` is 1 unless given. Default: shared with the target."""
    link: str | None = None
    """With ``chip``: link between the drafter's chips and the target's; default: the target chip's host link."""
    overlap: Share | None = None
    """With ``chip``: share of the drafting that runs while the target verifies; 1 is an ideal pipeline, default 0."""
    kv_tokens: PositiveInt | None = None
    """Draft model: tokens of KV that it keeps of each sequence (StreamingLLM: the first and the latest), as MagicDec.
    The target's own model then drafts for itself: no weights and no prefill of its own."""
    trained_window: PositiveInt | None = None
    """Longest context of the drafter's training, in tokens (``max_length`` of its training run). Beyond it acceptance
    falls (``acceptance.window_half``) unless the drafter is ``windowed``. Default: acceptance holds at any context,
    with a warning where prompts leave the 2048 tokens that EAGLE heads are usually trained on."""
    windowed: bool | None = None
    """True if the drafter's attention slides over the last ``trained_window`` tokens. Then acceptance holds at any
    context, and a pass reads the KV of the window (``sliding_window`` of its config.json, SGLang's
    ``--speculative-draft-window-size``). Default false."""
    num_layers: PositiveInt | None = None
    """Layers of a head (default 1; parallel drafter 4), or residual blocks of each Medusa head (default 1)."""
    intermediate_size: PositiveInt | None = None
    """Head: width of its feed-forward layer; default: the target's."""
    num_attention_heads: PositiveInt | None = None
    """Head: attention heads; default: the target's."""
    num_key_value_heads: PositiveInt | None = None
    """Head: KV heads; default: the target's."""
    head_dim: PositiveInt | None = None
    """Head: size of an attention head; default: the target's."""
    draft_vocab_size: PositiveInt | None = None
    """Tokens that the head can propose; default 32000 for EAGLE-3, the target's for a parallel drafter."""
    markov_rank: PositiveInt | None = None
    """Parallel drafter: rank of a sequential head that corrects each position by the token drafted before it. DSpark:
    256 in DeepSeek-V4's ``dspark_markov_rank``. Default: none, as DFlash and P-EAGLE."""
    modules: Literal["shared", "separate"] | None = None
    """MTP: one module run K times (default, as engines do), or K modules. These have weights and KV caches of their
    own."""
    step_s: Seconds | None = None
    """Host seconds per step that drafts, hidden by no kernel; default by method and framework."""
    pass_s: Seconds | None = None
    """The same per sequential pass."""
    per_sequence_s: Seconds | None = None
    """The same per drafting sequence and step; of a look-up on the host, its time for one sequence."""
    per_context_token_s: Seconds | None = None
    """Look-up on the host: seconds per context token scanned in each step."""

    @model_validator(mode="after")
    def _separate_chip(self) -> DraftConfig:
        for name in ("link", "overlap"):
            if self.chip is None and getattr(self, name) is not None:
                raise ValueError(f"{name} goes with chip: a drafter on the target's own chips sends nothing")
        if self.windowed is not None and self.trained_window is None:
            raise ValueError("windowed needs trained_window, the length of the attention window in tokens")
        if self.trained_window is not None and self.kv_tokens is not None:
            raise ValueError("give one of trained_window and kv_tokens: a drafter that keeps kv_tokens sees no more")
        return self


class AcceptanceConfig(Section):
    """Draft tokens that the target accepts; exactly one of the first six fields."""

    per_position: Rates | None = None
    """Share of drafts in which position i is accepted, as vLLM prints it; never rises."""
    conditional: Rates | None = None
    """Chance that position i is accepted given that all before it were."""
    alpha: Share | None = None
    """Chance that the first position is accepted; the same at every position unless ``decay`` says otherwise."""
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Mean tokens per verify step, bonus token included; turned into the alpha that gives it."""
    curve: str | None = None
    """Name of a published curve."""
    log: str | None = None
    """File in which vLLM or SGLang reported its acceptance: log, Prometheus counters or benchmark JSON."""
    method: str | None = None
    """Method that the rates were measured with, if it differs from the scenario's; curves state their method."""
    model: str | None = None
    """Target model that the rates were measured on, if not the scenario's."""
    instead_of: dict[str, Any] | None = None
    """The ``method`` and ``acceptance`` that stood here before the method was changed; set by Forerun."""
    decay: Annotated[float, Field(gt=0, le=MOST_DECAY, allow_inf_nan=False)] | None = None
    """With ``alpha`` or ``acceptance_length``: factor of the rate for each doubling of the position; default 1. From
    the first to the second, and from the second to the fourth."""
    extrapolate: bool = False
    """True if a fitted level and decay extend rates, a curve or a log beyond the last position."""
    other_ranks: list[Share] | None = None
    """Trees: share of the earlier candidates' misses that the candidate of rank 1, 2, ... catches. Default: Medusa's
    first head on Vicuna-7B."""
    spread: Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)] | None = None
    """Standard deviation of the first position's rate across requests (beta-distributed). Default 0, all alike; under
    policy confidence-budget that of a beta distribution of concentration 3, as of grown trees."""
    autocorrelation: Share | None = None
    """With a spread: correlation of the rates of neighbouring draft tokens. 1, the default, keeps a request's rates for
    all its tokens; below 1 they vary from token to token, and each draft is drawn on its own. Default under policy
    confidence-budget 0.8, chosen looking at the measurements that ``forerun validate adaptive`` scores."""

    context_decay: Annotated[float, Field(gt=0, le=1)] | None = None
    """Factor of every conditional rate for each doubling of the context beyond ``context_from`` tokens; default 1.
    Taken in steps of a quarter doubling. Public so far: 0.987 from 4096 tokens on for a draft that keeps 512 tokens of
    KV (LLaMA-3.1-8B on PG-19, 0.84 at 4k to 0.79 at 100k tokens: Infini-AI-Lab/MagicDec)."""
    context_from: PositiveInt | None = None
    """Context up to which the rates hold as given; default 2048, the length that EAGLE heads were trained at."""

    window_half: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """With ``draft.trained_window``: windows beyond the first after which half of every conditional rate remains. Rates
    are given within the window; default 4, fitted on EAGLE-3 at 2k to 20k tokens (vllm-project/speculators#684)."""

    @model_validator(mode="after")
    def _exactly_one(self) -> AcceptanceConfig:
        given = [name for name in ACCEPTANCE_SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(ACCEPTANCE_SOURCES)} (got {', '.join(given) or 'none'})")
        if self.per_position is not None:
            for i, (before, here) in enumerate(zip(self.per_position, self.per_position[1:], strict=False), start=2):
                if here > before:
                    raise ValueError(
                        f"per_position rises at position {i} ({before:g} to {here:g}), but a position is only reached "
                        f"when all before it were accepted; use conditional for rates given the positions before"
                    )
        if self.decay is not None and given[0] not in DECAYING:
            raise ValueError(f"{given[0]} has a decay of its own; decay goes with {' or '.join(DECAYING)}")
        if self.context_from is not None and self.context_decay is None:
            raise ValueError("context_from goes with context_decay")
        if self.extrapolate and given[0] in DECAYING:
            raise ValueError(f"{given[0]} holds for any number of positions; remove extrapolate, or give decay")
        if self.extrapolate and len(self.per_position or self.conditional or (0, 0)) < 2:
            raise ValueError(f"extrapolate needs two positions or more to see a decay; {given[0]} has one")
        return self

    @field_validator("curve")
    @classmethod
    def _known_curve(cls, name: str | None) -> str | None:
        if name is not None:
            load_curve(name)
        return name

    @property
    def positions(self) -> int | None:
        """Number of measured positions; None if any number can be drafted, or if only a file contains it."""
        if self.curve is not None:
            return load_curve(self.curve).positions
        rates = self.per_position or self.conditional
        return None if rates is None else len(rates)


class GrammarConfig(Section):
    """A grammar or JSON schema whose forced spans are draft tokens, accepted with certainty; beside a drafter or alone.

    The forced share is given, or measured in your own outputs.
    """

    forced_share: Share | None = None
    """Share of output tokens that the grammar leaves no choice of."""
    forced_span: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Mean forced tokens in a row; default 8 (assumed), or as measured."""
    outputs: str | None = None
    """File of outputs, one JSON value a line, in which share and span are measured."""
    json_schema: str | None = None
    """File of the JSON schema that the outputs follow."""
    step_s: Seconds | None = None
    """Additional host seconds of the grammar per step when drafting, not hidden by kernels. Default 0: masks are made
    while the step runs, as XGrammar does (arXiv:2411.15100)."""
    per_sequence_s: Seconds | None = None
    """The same per sequence."""

    @model_validator(mode="after")
    def _one_source(self) -> GrammarConfig:
        if (self.outputs is None) != (self.json_schema is None):
            raise ValueError("outputs and json_schema go together")
        if (self.forced_share is None) == (self.outputs is None):
            raise ValueError("give one of forced_share, and outputs with json_schema")
        if self.forced_span is not None and self.outputs is not None:
            raise ValueError("forced_span is measured in outputs; remove it")
        return self

    @property
    def forced(self) -> ForcedTokens:
        """Share and span, as given or as measured."""
        if self.outputs is not None and self.json_schema is not None:
            return measured_forced(self.outputs, self.json_schema)
        return ForcedTokens(self.forced_share or 0.0, self.forced_span or FORCED_SPAN)


GRAMMAR = "grammar"
"""Method of a grammar without a drafter."""
MOST_DRAFT_TOKENS = 1024
DRAFTER = "draft: {model: ...}"


class SpeculationConfig(Section):
    """Token speculation: draft K tokens, or a tree of them, and verify them in one target step."""

    method: Annotated[str, OneOf(METHODS)]
    """Speculation method; ``none`` switches speculation off but keeps the section's other fields."""
    num_speculative_tokens: Annotated[int, Field(gt=0, le=MOST_DRAFT_TOKENS)] | None = None
    """Draft tokens K per verify step, in a chain."""
    tree: TreeConfig | None = None
    """Draft tree, in place of a chain of ``num_speculative_tokens``."""
    draft: DraftConfig | None = None
    acceptance: AcceptanceConfig | None = None
    grammar: GrammarConfig | None = None
    """Forced spans of a grammar as draft tokens, in front of the drafter's own."""
    policy: PolicyName | PolicyConfig = "fixed"
    """Policy for the number of drafted tokens per step: a name, or a mapping with its parameters."""

    @field_validator("tree", mode="before")
    @classmethod
    def _named_tree(cls, tree: object) -> object:
        return {"name": tree} if isinstance(tree, str) else tree

    @model_validator(mode="before")
    @classmethod
    def _nothing_beside_the_grammar(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("method") == GRAMMAR:
            if data.get("grammar") is None:
                raise ValueError("method 'grammar' needs grammar: {forced_share: ...}, or outputs with json_schema")
            return {**data, "acceptance": data.get("acceptance") or {"alpha": 0.0}}
        return data

    @model_validator(mode="after")
    def _complete(self) -> SpeculationConfig:
        if self.method == "none":
            return self
        trees = [method for method, facts in METHODS.items() if facts.trees]
        if (self.num_speculative_tokens is None) == (self.tree is None):
            given = "got both" if self.tree is not None else "got neither"
            ways = " or tree" if self.method in trees else ""
            more = self._also_missing() if self.tree is None else ""
            raise ValueError(f"method '{self.method}' needs num_speculative_tokens{ways} ({given}){more}")
        if self.tree is not None and self.method not in trees:
            raise ValueError(
                f"method '{self.method}' drafts a chain; give num_speculative_tokens instead of tree "
                f"(trees: {', '.join(trees)})"
            )
        if self.acceptance is None:
            raise ValueError(
                f"method '{self.method}' {NEEDS_ACCEPTANCE}: what your engine counted ({{log: engine.log}}), a "
                "published curve ({curve: NAME}; forerun workloads curves lists them), or rates such as "
                "{conditional: [0.75, 0.7, 0.65]}" + ("" if self._has_drafter else f"; and {DRAFTER}")
            )
        self._check_draft()
        self._check_confidence(self.acceptance)
        self._check_window(self.acceptance)
        self._check_depth(self.acceptance)
        if self.tree is not None and named(self.policy).name not in TREE_POLICIES:
            raise ValueError(
                f"policy '{named(self.policy).name}' shortens a chain; with tree choose one of "
                f"{', '.join(TREE_POLICIES)}, or give num_speculative_tokens"
            )
        return self

    @property
    def _has_drafter(self) -> bool:
        return self.method != "draft-model" or (self.draft is not None and self.draft.model is not None)

    def _also_missing(self) -> str:
        """Fields that an incomplete drafter lacks, all named in one refusal."""
        acceptance = [] if self.acceptance is not None else ["acceptance, such as {conditional: [0.75, 0.7, 0.65]}"]
        return "".join(f"; and {one}" for one in [*acceptance, *([] if self._has_drafter else [DRAFTER])])

    @property
    def depth(self) -> int:
        """Maximum draft tokens that one step can accept."""
        return self.tree.longest_path if self.tree is not None else self.num_speculative_tokens or 0

    def _check_draft(self) -> None:
        if not self._has_drafter:
            raise ValueError(f"method 'draft-model' needs {DRAFTER}")
        fields = METHODS[self.method].fields
        for name in () if self.draft is None else sorted(self.draft.model_fields_set):
            if name not in fields and getattr(self.draft, name) is not None:
                raise ValueError(f"method '{self.method}' has no use for draft.{name} (it takes {', '.join(fields)})")
        if self.tree is not None and self.draft is not None and self.draft.modules == "separate":
            raise ValueError("draft.modules: separate modules draft a chain; give num_speculative_tokens, not tree")

    def _check_confidence(self, acceptance: AcceptanceConfig) -> None:
        policy = named(self.policy).name
        budget = policy == CONFIDENCE_BUDGET
        if self.method == GRAMMAR and policy != "fixed" and not budget:
            raise ValueError(
                f"policy '{policy}' chooses how much a drafter drafts; a grammar drafts what is forced: remove it"
            )
        if budget and METHODS[self.method].looks_up:
            raise ValueError(f"policy '{CONFIDENCE_BUDGET}' needs a drafter with confidences; {self.method} has none")
        if acceptance.autocorrelation is not None and acceptance.spread is None and not budget:
            raise ValueError("acceptance.autocorrelation goes with acceptance.spread, which says how much rates vary")

    def _check_window(self, acceptance: AcceptanceConfig) -> None:
        window = None if self.draft is None else self.draft.trained_window
        falls = window is not None and self.draft is not None and not self.draft.windowed
        if acceptance.window_half is not None and not falls:
            raise ValueError("acceptance.window_half goes with draft.trained_window of a drafter that is not windowed")
        if acceptance.context_decay is not None and window is not None:
            raise ValueError(
                "give one of acceptance.context_decay and draft.trained_window: both say how acceptance falls"
            )

    def _check_depth(self, acceptance: AcceptanceConfig) -> None:
        if acceptance.other_ranks is not None:
            source = next(name for name in ACCEPTANCE_SOURCES if getattr(acceptance, name) is not None)
            if self.tree is None or source in ("per_position", "log"):
                why = "goes with tree" if self.tree is None else f"has no use beside {source}, which counts all ranks"
                raise ValueError(f"acceptance.other_ranks {why}; remove it")
        measured = acceptance.positions
        if measured is not None and measured < self.depth and not acceptance.extrapolate:
            name = next(name for name in ACCEPTANCE_SOURCES if getattr(acceptance, name) is not None)
            drafted = "num_speculative_tokens is" if self.tree is None else "the tree's depth is"
            raise ValueError(
                f"acceptance.{name} has {measured} positions, {drafted} {self.depth}; "
                f"give a rate for every position, or set acceptance.extrapolate: true"
            )


def trims(config: SpeculationConfig | None) -> bool:
    """True if a step verifies only some draft tokens: the most valuable tokens, or the tokens that a grammar forces."""
    return config is not None and (config.method == GRAMMAR or named(config.policy).name == CONFIDENCE_BUDGET)
