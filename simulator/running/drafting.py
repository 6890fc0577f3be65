"""Drafters from a scenario's speculation section, and the policies that control them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

import simulator.timing as timing
from forerun.arrays import FloatArray
from hwprofiles import load_chip, load_link
from simulator.llm import (
    Architecture,
    DraftHead,
    HeadSizes,
    eagle3_head,
    eagle_head,
    load_architecture,
    mtp_architecture,
    parallel_head,
    published_head,
    usual_head,
)
from simulator.running.assumptions import Assumptions
from simulator.running.refusals import check_draft_passes
from simulator.serving import DraftingRule, Pool, policy_factory
from simulator.serving.compiled import engine_module
from simulator.serving.drafting import StepSeconds
from simulator.serving.prices import prices_of
from simulator.speculation import (
    BatchTable,
    DraftConfig,
    PolicyFactory,
    Proposal,
    SpeculationConfig,
    draft_survival,
)
from simulator.speculation.confidence import (
    CONFIDENCE_THRESHOLD,
    DEFAULT_THRESHOLD,
    PROFILED_CONTEXT,
    ThresholdChain,
    VerifyBudget,
    seen_worth,
    threshold_chain,
    threshold_policies,
)
from simulator.speculation.level_decay import conditional_rates
from simulator.speculation.methods import METHODS
from simulator.speculation.speculation_config import CONFIDENCE_BUDGET, GRAMMAR, named, trims
from simulator.timing.framework import DraftOverhead

RECOVERY_TOKENS = 64
"""Default of the policy's ``recovery_tokens``; assumed."""
PRICED_STEPS = 100_000
"""Size of the caches of step times that policies request."""
DrafterFactory = Callable[["DraftRequest"], timing.Drafter]
"""Plug-in function that builds the drafter of a run."""

HEADS: dict[str, Callable[..., DraftHead]] = {
    "eagle": eagle_head,
    "eagle2": eagle_head,
    "eagle3": eagle3_head,
    "parallel-draft": parallel_head,
}
"""Methods whose drafter is a head trained on the target's hidden states."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Input for building a drafter."""

    config: SpeculationConfig
    proposal: Proposal
    target: timing.Deployment
    max_num_seqs: int
    max_num_batched_tokens: int
    stages: int = 1
    """Number of pipeline stages of the target; the last stage drafts."""

    @property
    def draft(self) -> DraftConfig:
        return self.config.draft or DraftConfig()

    @property
    def measured(self) -> DraftOverhead:
        return method_overhead(self.target.framework.name, self.config.method)

    @property
    def overhead(self) -> timing.HostOverhead:
        """Host time per step and pass: from the scenario, else the default of the method in this engine."""
        draft, known = self.draft, self.measured
        step_s = _given(draft.step_s, known.step_s)
        per_sequence_s = _given(draft.per_sequence_s, known.per_sequence_s)
        policy = named(self.config.policy)
        if policy.name == CONFIDENCE_BUDGET:
            step_s += _given(policy.step_s, known.budget_step_s)
            per_sequence_s += policy.per_sequence_s or 0.0
        if self.config.grammar is not None:
            step_s += self.config.grammar.step_s or 0.0
            per_sequence_s += self.config.grammar.per_sequence_s or 0.0
        return timing.HostOverhead(
            step_s,
            _given(draft.pass_s, known.pass_s),
            per_sequence_s,
            known.sequence_pass_s if draft.per_sequence_s is None else 0.0,
        )

    def sequential(
        self, deployment: timing.Deployment, weights: float, kv: float, **more: Any
    ) -> timing.SequentialDrafter:
        """Sequential drafter with the method's depth and widths; ``more`` are further fields of the drafter."""
        timer, proposal = timing.step_timer(deployment, self.max_pass_tokens), self.proposal
        return timing.SequentialDrafter(timer, proposal.depth, proposal.pass_widths, weights, kv, self.overhead, **more)

    def seen(self, architecture: Architecture) -> Architecture:
        """The drafter's model, with sliding-window attention if it was trained for a window."""
        window = self.draft.trained_window if self.draft.windowed else None
        return architecture if window is None else _windowed(architecture, window)

    def deployment(self, architecture: Architecture, dtypes: dict[str, str]) -> timing.Deployment:
        """Deployment of a drafter's model on its chips: the scenario's drafter chips, or the target's."""
        draft, target = self.draft, self.target
        architecture = self.seen(architecture)
        chips = draft.tensor_parallel or (target.tensor_parallel if draft.chip is None else 1)
        target = replace(target, architecture=architecture, weight_dtypes=dtypes, tensor_parallel=chips)
        if draft.chip is None:
            return target
        chip, framework = load_chip(draft.chip), target.framework
        scales, corrected = framework.static_activation_scales, bool(target.kernels.corrected)
        kernels = Assumptions().kernels(chip, framework.kernel_library, True, scales, False, corrected)
        link = load_link(chip.links.scale_up) if chip.links.scale_up else None
        return replace(target, chip=chip, kernels=kernels, link=link)

    @property
    def embedding_bytes(self) -> float:
        """Bytes on one chip of the embedding copy that a head on the last pipeline stage needs. The target's embedding
        is on the first stage; 0 if both share one stage.

        Source: vllm-project/vllm#50514 (vLLM 0.28), sgl-project/sglang#39643.
        """
        if self.stages == 1:
            return 0.0
        return self.target.weight_bytes - replace(self.target, first_stage=False).weight_bytes

    @property
    def max_drafting_seqs(self) -> int:
        """Maximum number of drafting sequences in a priced step: a full batch plus one-token prompts."""
        return self.max_num_seqs + self.max_num_batched_tokens

    @property
    def max_pass_tokens(self) -> int:
        """Maximum tokens of one draft pass: the tokens of a step, or one tree layer of every sequence."""
        return max(self.max_num_batched_tokens, self.max_num_seqs * max(self.proposal.pass_widths, default=1))


def method_overhead(framework: str, method: str) -> DraftOverhead:
    """Host times of a method, measured in this engine or another engine; else those of a similar method."""
    return timing.load_draft_overhead(framework, METHODS[method].times_of or method)


def lookahead_tokens(config: SpeculationConfig, proposal: Proposal) -> int:
    return proposal.nodes if METHODS[config.method].draft_slots else 0


def drafting_notes(config: SpeculationConfig) -> Iterator[str]:
    """Notes for readers of results on how a speculation method is described."""
    policy = named(config.policy)
    if config.method == "none":
        return
    if policy.name == CONFIDENCE_BUDGET:
        yield "the drafter proposes in full; each step verifies the draft tokens worth most, as their confidence says"
    elif policy.name == CONFIDENCE_THRESHOLD:
        yield "the drafter's confidences are taken to be calibrated; the drafts of a batch end at the same position"
    elif policy.name != "fixed":
        idle = {
            "follow": "keeps up with one pass per step",
            "starve": "never sees what it skipped and is accepted less often until that lies far back (assumed)",
        }.get(policy.while_off or "", "catches up on what it skipped once K > 0")
        yield (
            f"policy {policy.name}: the requests of a step decide what is drafted at its end and verified in the next; "
            f"a drafter at K = 0 {idle}; KV slots are kept for {config.depth} draft tokens throughout"
        )
    if config.grammar is not None:
        share, span = config.grammar.forced
        yield f"grammar: {100 * share:.0f} % of the output tokens are forced, in spans of {span:.1f} tokens"
    if METHODS[config.method].looks_up:
        yield (
            f"{config.method}: every sequence verifies {config.num_speculative_tokens} draft tokens in every step, so "
            f"acceptance is counted per step; a step without a match is a draft of which nothing is accepted"
        )


def drafting_rule(
    config: SpeculationConfig,
    timer: timing.ModelTimer,
    make_policy: PolicyFactory | None = None,
    seed: int = 0,
    interpreted: bool = False,
) -> DraftingRule | None:
    """The draft policy of a scenario; None if K, the number of draft tokens, never changes.

    Args:
        config: speculation section of the scenario.
        timer: prices of the target and the drafter.
        make_policy: makes a custom policy in place of the one that the scenario names.
        seed: seed of a policy's random draws.
        interpreted: whether to use the policies of the interpreted engine.
    """
    policy, most = named(config.policy), config.depth
    if policy.name == CONFIDENCE_BUDGET and make_policy is None:
        return None
    if policy.name == CONFIDENCE_THRESHOLD and make_policy is None:
        check_draft_passes(timer.drafter, config.method)
        return DraftingRule(threshold_policies(chain_behind(config), seed), most, follows=True)
    engine = engine_module(interpreted)
    price, none = prices_of(timer, engine).seconds_of, (0,) * len(timer.windows)

    @lru_cache(maxsize=PRICED_STEPS)
    def switch_seconds(seqs: int, skipped: int) -> float:
        """Seconds that a change of K adds to a decode step, the drafter's skipped tokens included."""
        if policy.while_off == "starve":
            skipped = 0
        each = max(1, skipped // seqs)
        pairs = tuple(seqs * timing.causal_pairs(each, 0, w) if skipped else 0 for w in timer.windows)
        keys = tuple(seqs * timing.keys_read(each, each, w) if skipped else 0 for w in timer.windows)
        work = timing.decode_step(timer.windows, min(seqs, timer.target.max_tokens // 2), 2, each)
        changed = timing.DraftStep(1, 1, seqs if skipped else 0, skipped, pairs, keys)
        return float(price(work, changed) - price(work, timing.DraftStep(1, 0, 0, 0, none, none)))

    factory = make_policy or policy_factory(policy, most, step_prices(timer, most, price), switch_seconds, engine)
    if factory is None:
        return None
    recovery = policy.recovery_tokens or RECOVERY_TOKENS if policy.while_off == "starve" else 0
    return DraftingRule(factory, most, policy.while_off == "follow", recovery)


def step_prices(timer: timing.ModelTimer, most: int, price: Callable[..., float]) -> StepSeconds:
    """Function that policies use for the seconds of a step with up to ``most`` draft tokens.

    Args:
        timer: prices of the target and the drafter.
        most: number of draft tokens of a full proposal.
        price: ``timer.seconds``, or an equivalent function.
    """
    none = (0,) * len(timer.windows)

    @lru_cache(maxsize=PRICED_STEPS)
    def step_seconds(seqs: int, tokens: int, context: int, prompt: int = 0) -> float:
        """Seconds of a step in which each sequence verifies and drafts ``tokens`` tokens, with prompt tokens. If one
        step cannot process all tokens, seconds of several steps."""
        held = timer.target.max_tokens // (tokens + 1)
        if held < seqs:
            return step_seconds(held, tokens, context) * seqs / held
        work = timing.decode_step(timer.windows, seqs, tokens + 1, context)
        prompt = min(prompt, timer.target.max_tokens - seqs * (most + 1))
        if prompt > 0:
            pairs = tuple(timing.causal_pairs(prompt, 0, w) for w in timer.windows)
            keys = tuple(timing.keys_read(prompt, prompt, w) for w in timer.windows)
            work = work._replace(prefill_seqs=1, prefill_tokens=prompt, prefill_pairs=pairs, prefill_kv_tokens=keys)
        return float(price(work, timing.DraftStep(tokens, 0, 0, 0, none, none)))

    return step_seconds


def drafting_gain(pool: Pool, config: SpeculationConfig, batch: int, context: int) -> float:
    """Speed with drafts relative to plain steps: ``(1 + accepted drafts) * plain step / (drafting + verification)``."""
    timer, windows = pool.timer, pool.timer.windows
    assert isinstance(timer, timing.ModelTimer)
    plain_s = float(replace(timer, drafter=None).seconds(timing.decode_step(windows, batch, 1, context)))
    drafting_s = float(timer.seconds(timing.decode_step(windows, batch, pool.limits.query_len, context)))
    return (1.0 + float(np.sum(draft_survival(config)))) * plain_s / drafting_s


def always_full(config: SpeculationConfig, starved: bool) -> DraftingRule:
    """Policy of full drafts, for drafters that compute skipped tokens later or (``starved``) never recover them."""
    always = BatchTable((config.depth,))
    return DraftingRule(lambda: always, config.depth, recovery_tokens=RECOVERY_TOKENS if starved else 0)


def verify_budget(
    config: SpeculationConfig, timer: timing.ModelTimer, rates: FloatArray, most_seqs: int
) -> VerifyBudget | None:
    """Rule that selects the draft tokens that a step verifies; None if a step verifies all.

    Args:
        config: speculation section of the scenario.
        timer: prices of the target and the drafter.
        rates: probability that at least i tokens are accepted, by class of draft.
        most_seqs: maximum number of sequences of a step.
    """
    policy, each = named(config.policy), config.depth + 1
    if not trims(config):
        return None
    target, windows = timer.target, timer.windows
    most_seqs = min(most_seqs, target.max_tokens // each)

    def verify(seqs: Any, tokens: Any) -> timing.StepWork[Any]:
        """Work of steps that verify equal numbers of tokens per sequence."""
        longest = -(-tokens // np.maximum(1, seqs))
        kept = tuple(PROFILED_CONTEXT if w is None else min(PROFILED_CONTEXT, w - 1) for w in windows)
        keys = tuple(seqs * one + tokens for one in kept)
        return timing.decode_work(seqs, longest, keys)._replace(trimmed=seqs * longest - tokens)

    def seconds(work: timing.StepWork[Any]) -> FloatArray:
        costs = target.costs(timer.scored(work))
        total: FloatArray = costs.device_s + costs.host_s
        return total

    seqs = np.arange(most_seqs + 1)
    whole = timer.costs(verify(seqs, seqs * each))
    around = whole.device_s + whole.host_s - seconds(verify(seqs, seqs * each))
    tokens = np.arange(target.max_tokens + 1)
    by_tokens = seconds(verify(-(-tokens // each), tokens))

    def step_seconds(batch: int) -> FloatArray:
        if policy.rule != "sglang":
            return by_tokens
        verified = np.arange(batch, batch * each + 1)
        priced = seconds(verify(np.full(len(verified), batch), verified))
        return np.concatenate((np.full(batch, priced[0]), priced))

    prompt = timing.usual_steps(windows, each, 1, target.max_tokens)
    prompt_s = float(seconds(prompt)[0]) / float(prompt.prefill_tokens[0])
    confidence = "perfect" if config.method == GRAMMAR else policy.confidence or "calibrated"
    worth = seen_worth(rates, confidence, policy.calibration_error or 0.0)
    deployment = target.deployment
    padded = deployment.framework.padded_tokens(tokens, deployment.cuda_graphs)
    captured = tokens[(padded == tokens) & (tokens <= deployment.framework.max_captured_tokens)]
    sizes = captured if deployment.cuda_graphs else tokens[:0]
    return VerifyBudget(worth, confidence, step_seconds, sizes, prompt_s, around, policy.rule != "sglang")


def adjusted_drafter(config: SpeculationConfig, drafter: timing.Drafter, framework: str) -> timing.AdjustedDrafter:
    policy = named(config.policy)
    known = method_overhead(framework, config.method)
    ends_drafts = policy.name == CONFIDENCE_THRESHOLD
    free = ends_drafts or policy.name == "fixed"  # a policy in Python, or drafts that end by themselves
    return timing.AdjustedDrafter(
        drafter,
        config.depth,
        policy.while_off == "follow",
        policy.switch_s or 0.0,
        _given(policy.step_s, 0.0 if free else known.policy_step_s),
        _given(policy.per_sequence_s, 0.0 if free else known.policy_sequence_s),
        known.gate_s if ends_drafts else None,
    )


def chain_behind(config: SpeculationConfig) -> ThresholdChain:
    """The scenario's chain with its confidence threshold applied; unchanged without a threshold."""
    policy = named(config.policy)
    threshold = 0.0 if policy.name != CONFIDENCE_THRESHOLD else policy.confidence_threshold or DEFAULT_THRESHOLD
    return threshold_chain(conditional_rates(draft_survival(config).tolist()), threshold)


def verified_survival(config: SpeculationConfig) -> FloatArray:
    """Probability that at least 1, 2, ... of the verified draft tokens are accepted."""
    if named(config.policy).name != CONFIDENCE_THRESHOLD:
        return draft_survival(config)
    survival: FloatArray = np.cumprod(chain_behind(config).kept, dtype=np.float64)
    return survival


def build_drafter(request: DraftRequest) -> timing.Drafter:
    return BUILDERS.get(request.config.method, trained_head)(request)


def draft_model(request: DraftRequest) -> timing.Drafter:
    draft = request.draft
    assert draft.model is not None
    architecture = load_architecture(draft.model)
    deployment = request.deployment(architecture, timing.resolve_weight_dtypes(architecture, draft.weights_dtype))
    weights, kv, itself = deployment.weight_bytes, deployment.kv_bytes_per_token, False
    if draft.kv_tokens is not None:
        itself = deployment == request.target
        cache = draft.kv_tokens * request.max_num_seqs * kv
        weights, kv = cache + (0.0 if itself else weights), 0.0
        deployment = replace(deployment, architecture=_windowed(architecture, draft.kv_tokens))
    return placed(request, request.sequential(deployment, weights, kv, reads_target_cache=itself), 0)


def _windowed(architecture: Architecture, kv_tokens: int) -> Architecture:
    groups = []
    for group in architecture.layer_groups:
        attention = group.layer.attention
        window = kv_tokens if attention.window is None else min(attention.window, kv_tokens)
        groups.append(replace(group, layer=replace(group.layer, mixer=replace(attention, window=window))))
    return replace(architecture, layer_groups=tuple(groups))


def lookup(request: DraftRequest) -> timing.Drafter:
    """Build an n-gram or suffix look-up on the host."""
    draft, known = request.draft, request.measured
    return timing.HostDrafter(
        _given(draft.step_s, known.step_s),
        _given(draft.per_sequence_s, known.per_sequence_s),
        _given(draft.per_context_token_s, known.per_context_token_s),
    )


def medusa(request: DraftRequest) -> timing.Drafter:
    draft = request.draft
    dtypes = timing.resolve_weight_dtypes(request.target.architecture, draft.weights_dtype or "bf16")
    depth, seqs, layers = request.proposal.depth, request.max_drafting_seqs, draft.num_layers or 1
    return timing.HeadsDrafter(request.target, depth, seqs, layers, dtypes["mlp"], request.overhead)


def mtp(request: DraftRequest) -> timing.Drafter:
    """Build a drafter from the target's multi-token-prediction module, run for every depth, or one module per depth."""
    target, draft = request.target, request.draft
    architecture = request.seen(mtp_architecture(target.architecture))
    dtypes = dict(target.weight_dtypes)
    if draft.weights_dtype is not None:
        dtypes = timing.resolve_weight_dtypes(architecture, draft.weights_dtype)
    dtypes["embedding"] = _lm_head_dtype(target)  # the tied table of the module stands for the target's LM head
    chips = draft.tensor_parallel or target.tensor_parallel
    deployment = replace(target, architecture=architecture, weight_dtypes=dtypes, tensor_parallel=chips)
    separate = draft.modules == "separate"
    modules = request.proposal.depth if separate else 1
    weights, kv = modules * deployment.layer_weight_bytes, modules * deployment.kv_bytes_per_token
    weights += request.embedding_bytes
    return request.sequential(deployment, weights, kv, separate_modules=separate)


def trained_head(request: DraftRequest) -> timing.Drafter:
    """Build a trained head: EAGLE, EAGLE-2, EAGLE-3 (depth by depth), or a parallel drafter (one pass)."""
    draft, target, proposal, sizes = request.draft, request.target, request.proposal, _head_sizes(request)
    head = HEADS[request.config.method](target.architecture, sizes)
    dtypes = timing.resolve_weight_dtypes(head.architecture, draft.weights_dtype)
    if not head.own_lm_head:
        dtypes["lm_head"] = _lm_head_dtype(target)
    deployment = request.deployment(head.architecture, dtypes)
    weights = timing.layer_weight_bytes(deployment, head.own_lm_head, head.fused_hidden_states)
    if draft.chip is not None:  # the target's tables lie on other chips
        weights = max(weights, deployment.weight_bytes)
    else:
        weights += request.embedding_bytes
    states = max(1, head.fused_hidden_states)
    kv = deployment.kv_bytes_per_token
    fusion: timing.DraftTable | None = None
    if head.fused_hidden_states:
        fusion = timing.fusion_table(deployment, head.fused_hidden_states, request.max_num_batched_tokens)
    if request.config.method == "parallel-draft":
        timer = timing.step_timer(deployment, request.max_num_batched_tokens + request.max_num_seqs * proposal.depth)
        rank, table = sizes.markov_rank or 0, None
        if rank:
            weights += timing.markov_weight_bytes(deployment, target.architecture.vocab_size, rank)
            table = timing.markov_table(deployment, rank, request.max_drafting_seqs)
        parallel = timing.ParallelDrafter(
            timer, proposal.depth, weights, kv, request.overhead, fusion, table, head.fused_hidden_states
        )
        return placed(request, parallel, states)
    return placed(
        request,
        request.sequential(deployment, weights, kv, fusion=fusion, fused_hidden_states=head.fused_hidden_states),
        states,
    )


BUILDERS: dict[str, Callable[[DraftRequest], timing.Drafter]] = {
    "draft-model": draft_model,
    "ngram": lookup,
    "suffix": lookup,
    "medusa": medusa,
    "mtp": mtp,
    "grammar": lambda request: timing.HostDrafter(request.overhead.step_s, request.overhead.per_sequence_s),
}
"""Function that builds the drafter, by method; methods that are not listed are trained heads."""


def placed(
    request: DraftRequest, drafter: timing.SequentialDrafter | timing.ParallelDrafter, hidden_states: int
) -> timing.Drafter:
    """Place a drafter as in the scenario: on the target's chips, or on separate chips behind a link."""
    draft, target = request.draft, request.target
    if draft.chip is None:
        return drafter
    name = draft.link or target.chip.links.host or target.chip.links.scale_out
    assert name is not None
    state_bytes = hidden_states * target.architecture.hidden_size * timing.ACTIVATION_BYTES
    return timing.RemoteDrafter(drafter, load_link(name), state_bytes, draft.overlap or 0.0)


def _head_sizes(request: DraftRequest) -> HeadSizes:
    """Draft-head sizes from the scenario or its public head; missing sizes are derived from the target."""
    draft = request.draft
    method, architecture = request.config.method, request.target.architecture
    if draft.model is not None:
        sizes = published_head(draft.model, method, architecture).sizes
    else:
        usual = usual_head(method, architecture)
        sizes = HeadSizes() if usual is None else usual.sizes
    known = {field.name: getattr(draft, field.name) for field in fields(HeadSizes)}
    return replace(sizes, **{name: value for name, value in known.items() if value is not None})


def _lm_head_dtype(target: timing.Deployment) -> str:
    return target.weight_dtypes["embedding" if target.architecture.tie_word_embeddings else "lm_head"]


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
