"""Kernel times of one chip under one kernel library: the interface the simulator calls."""

from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import cast

import numpy as np

from hwprofiles.catalogue import BACKENDS, LOCAL_LIBRARY, load_chip, load_link
from hwprofiles.choice import (
    BASES,
    CALIBRATED,
    EXTRAPOLATED,
    PORTABLE,
    as_older_kernels_see,
    core_shares,
    exact_names,
    find_parameters,
    inside_ranges,
    unfitted_interval,
)
from hwprofiles.correction import Correction, Key, Pairs, load_corrections
from hwprofiles.dtypes import MIXED, VARIANT, dtype_bytes, format_of, shares_of
from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.formulas import (
    ARRAY,
    PLAIN_HEAD,
    SCALAR,
    WINDOWED,
    AttentionShape,
    CollectiveTime,
    Functions,
    KernelTime,
    Limits,
    Num,
    Traced,
    all_plain,
    evaluate_formula,
    functions_of,
    times_where,
)
from hwprofiles.kernels.attention import decode_time, one_pass_time, prefill_time, tail_sequences, tail_time_per_key
from hwprofiles.kernels.gemm import gemm_time, with_static_scales
from hwprofiles.kernels.moe import DISPATCHED, moe_time, read_routing, slowest_rank_factor
from hwprofiles.kernels.movement import collective_time, elementwise_time
from hwprofiles.kernels.recurrent import RecurrentShape, recurrent_decode_time, recurrent_prefill_time
from hwprofiles.kernels.sparse import IndexShape, SparseShape, index_time, sparse_time
from hwprofiles.parameters import (
    CollectiveParameters,
    DecodeParameters,
    ElementwiseParameters,
    FamilyParameters,
    GemmParameters,
    MoeParameters,
    PrefillParameters,
    RecurrentDecodeParameters,
    RecurrentPrefillParameters,
)
from hwprofiles.schema import Chip, Link

MixingShape = AttentionShape | RecurrentShape | IndexShape | SparseShape
"""Shape of a layer's attention or recurrence on one chip."""

_CACHE_ENTRIES = 100_000
SCORE_BYTES, SCORE_KERNELS = 4.0, 4.0
"""Without FlashAttention: bytes per score, and passes (write, softmax read and write, read; ``build_attn_mha``)."""
LANE_FLOPS = 256.0
"""Operations per core and clock cycle: two in each of 128 lanes."""
LIBRARIES = (
    "generic", "vllm", "sglang", "trtllm", "tt-metal", "transformers", "reference", "nccl", PORTABLE, LOCAL_LIBRARY,
    *(f"{LOCAL_LIBRARY}-{backend}" for backend in BACKENDS),
)  # fmt: skip
"""Kernel libraries that a chip may have a fit for (fallback: the generic fit); a profile may add its own."""


WIDE_TILES: Mapping[str, object] = {"tiles": ((64, 128),), "compute_efficiency": 0.2, "launch_s": 5.0e-6}
"""Parameters of block-FP8 experts whose shape no file has tuned tiles for. Tiles are rows and columns, the efficiency
is a share of the dense peak, and launches are in seconds.

Source: SGLang on one H200, 128 experts of 4,096 x 192, before tuning (sgl-project/sglang#11730): 31.7, 36.6, 49.7,
66.9, 92.4, 117.4 and 125.0 us for 1 to 32 tokens, fitted to 4 %."""
WIDE_TILES_BELOW = 128
"""Tokens below which such experts have ``WIDE_TILES``: from here on vLLM multiplies them with DeepGEMM."""
CORRECTED = True
"""True if learned corrections are applied by default (``engine.kernel_correction``)."""


def _heads(shape: AttentionShape) -> dict[str, Num]:
    return {"num_heads": shape.num_heads, "num_kv_heads": shape.num_kv_heads, "head_dim": shape.qk_dim}


def by_format(dtype: str, timed: Callable[[str], KernelTime]) -> KernelTime:
    """Mean time of equal matrices stored in several formats, each computed by the kernels of its format."""
    parts = [(share, timed(name)) for name, share in shares_of(dtype).items()]
    return KernelTime(*(sum(share * time[i] for share, time in parts) for i in range(len(KernelTime._fields))))


class KernelLibrary:
    """Predicts kernels of ``chip`` as ``library`` runs them.

    Parameters come from the chip's fit for that library, else its ``generic`` fit, else the defaults of its class;
    within a family, from the set of the operand's dtype, else the nearest one. All sizes may be numbers or numpy
    arrays; numbers give plain floats, and any array gives arrays. Work of size zero takes zero seconds. Every method
    raises ProfileError for an unknown family, dtype or routing, for a dtype that the chip cannot compute with, and for
    a negative size.

    Args:
        chip: a profile, a catalogue name or a path.
        library: generic, vllm, sglang, trtllm ...
        split_kv: whether decode attention may split the KV axis of a sequence (FlashDecoding).
        static_scales: whether the checkpoint contains the scales of 8-bit activations, so that no scale is computed.
        marlin: whether 4-bit experts of any format run in Marlin kernels, which dequantise them to 16 bits; these
            kernels have the ``int4`` sets. (The only set fitted on Marlin with MXFP4, of 896 experts and 63 us
            per launch, predicts gpt-oss serving 18 % too slow; the error with ``int4`` is 2 %.)
        corrected: whether the profile's learned corrections are applied to the analytical times.
        flash: whether attention keeps its scores on the chip (FlashAttention); else they pass through memory.
        reductions: library of the collectives, if different.
        wide_tiles: whether block-FP8 experts of any shape have tiles of 64 rows for few tokens too (``WIDE_TILES``).

    Raises:
        ProfileError: no such chip or library, or a damaged file of corrections.
    """

    def __init__(
        self,
        chip: Chip | str | Path,
        library: str = "generic",
        split_kv: bool = True,
        static_scales: bool = False,
        marlin: bool = False,
        corrected: bool = CORRECTED,
        flash: bool = True,
        reductions: str | None = None,
        wide_tiles: bool = False,
    ) -> None:
        self.flash = flash
        self._wide_tiles = wide_tiles
        self.chip = chip if isinstance(chip, Chip) else load_chip(chip)
        known = sorted({*LIBRARIES, *self.chip.kernels})
        if library not in known:
            raise ProfileError(
                f"no kernel library '{library}'{did_you_mean(library, known)} (one of {', '.join(known)})"
            )
        self.library = library
        self._reductions = reductions or library
        self._older = library == PORTABLE and self.chip.compute.asynchronous
        self._fitted = self.chip
        if self._older:
            self.chip = as_older_kernels_see(self.chip)
        self._split_kv = split_kv
        self._static_scales = static_scales
        self._marlin = marlin
        self._chosen: dict[tuple[str, str], tuple[FamilyParameters, str]] = {}
        self._limits: dict[str, Limits] = {}
        self._gemms: dict[tuple[object, ...], KernelTime] = {}
        self._along: dict[tuple[object, ...], Callable[..., Num]] = {}
        """Cached corrections as functions of the variable sizes, by family, format and fixed sizes."""
        self.corrected = corrected
        self.corrections: Mapping[Key, Correction] = {}
        """Learned corrections in use, by library, family and name of the set."""
        if corrected and not self._older:
            self.corrections = load_corrections(self._model.corrections_file)

    def parameters(self, family: str, dtype: str = "bf16") -> FamilyParameters:
        """Return the parameter set used for a kernel family and the dtype of its stored operand."""
        return self._choose(family, dtype)[0]

    def basis(self, family: str, dtype: str = "bf16") -> str:
        """Return the evidence level of the times of a family: ``"calibrated"`` when fitted on this chip's measured
        kernels of that dtype, ``"extrapolated"`` when fitted on this chip for another dtype, ``"datasheet"`` when the
        class defaults are used."""
        return self._choose(family, dtype)[1]

    def basis_code(self, family: str, dtype: str, sizes: Mapping[str, Num]) -> Num:
        """Evidence level of a kernel of these sizes (by kernel-trace column, numbers or arrays), as an index into
        ``BASES``. A fit covers the shapes inside its recorded ranges; a fit without ranges covers all shapes."""
        parameters, basis = self._choose(family, dtype)
        if basis != BASES[CALIBRATED] or parameters.fit is None:
            return BASES.index(basis)
        codes = np.where(inside_ranges(parameters.fit.ranges, sizes), CALIBRATED, EXTRAPOLATED)
        return codes if codes.ndim else int(codes)

    def interval(
        self, family: str, dtype: str, sizes: Mapping[str, Num], bound: Num, assumed: bool = False
    ) -> tuple[Num, Num]:
        """Bounds of the 90 % interval of a kernel, as factors on its time; (1, 1) if unknown.

        Args:
            family: kernel family.
            dtype: format of the stored operand.
            sizes: numbers or arrays by kernel-trace column name.
            bound: limiting resource of the kernel, a string or an array of strings.
            assumed: whether a kernel without an interval of its own gets an assumed one: the spread of fits
                applied to other chips, or of fitted chips around their class defaults (``unfitted_interval``).
        """
        parameters, basis = self._choose(family, dtype)
        trusted = basis == BASES[CALIBRATED] or (assumed and basis != BASES[EXTRAPOLATED])
        known: Pairs = parameters.fit.intervals if trusted and parameters.fit is not None else {}
        if "all" not in known:
            return unfitted_interval(family) if assumed else (1.0, 1.0)
        correction = self.correction(family, dtype) if basis == BASES[CALIBRATED] else None
        if correction is not None and np.all(inside_ranges(correction.ranges, sizes)):
            known = correction.intervals or known
        inside = inside_ranges(parameters.fit.ranges, sizes) if parameters.fit is not None else True
        ends = []
        for end, nearest in ((0, np.minimum), (1, np.maximum)):
            factor = np.full(np.shape(bound), known["all"][end])
            for name, pair in known.items():
                factor = np.where(np.equal(bound, name), pair[end], factor)
            outside = known.get("outside", known["all"])[end]
            ends.append(nearest(1.0, np.where(inside, factor, outside)))
        return ends[0], ends[1]

    def reading(self, corrected: bool) -> "KernelLibrary":
        """Copy of this library with the profile's learned corrections, or with analytical times alone."""
        other = copy(self)
        other.corrected = corrected
        other.corrections = load_corrections(self._model.corrections_file) if corrected and not self._older else {}
        other._gemms, other._along = {}, {}
        return other

    @property
    def _model(self) -> Chip:
        """Chip that supplies the fits and their corrections. It is the chip that ``like`` names if this chip has no
        fits at all, else this chip."""
        model = self._fitted
        while model.like is not None and not model.kernels:
            model = load_chip(model.like)
        return model

    def correction(self, family: str, dtype: str) -> Correction | None:
        """Learned correction of the parameter set used for a family and a format, or None. A correction for attention
        applies only to the head size that it was learned on."""
        if not self.corrections:
            return None
        heads = dtype.split(VARIANT)[1:2] if family.startswith("attention") else []
        plain = heads in ([], [PLAIN_HEAD], [PLAIN_HEAD + WINDOWED])
        for library in dict.fromkeys((self.library, "generic")):
            sets = self._model.kernels.get(library, {}).get(family, {})
            for name in exact_names(family, self._kernels_of(family, dtype)):
                if name in sets:
                    return self.corrections.get((library, family, name)) if plain or VARIANT in name else None
        return None

    def _corrected(
        self,
        family: str,
        dtype: str,
        time: KernelTime,
        held: bool = False,
        moving: Mapping[str, Num] | None = None,
        **sizes: Num,
    ) -> KernelTime:
        """Corrected kernel time; the correction never takes it below the speed-of-light time in the format.

        ``held``: operands may already be on the chip, so that memory bandwidth sets no lower bound. ``moving`` are the
        sizes (named as in ``hwprofiles.correction.SIZES``) that differ between calls for one layer, which are priced
        one by one in loops; only these may be traced, because hundreds of hinge functions of all sizes would make the
        formula too long.
        """
        correction = self.correction(family, dtype)
        if correction is None:
            return time
        if moving is None or isinstance(time.seconds, np.ndarray):
            if isinstance(time.seconds, Traced):
                raise TypeError("learned corrections of all sizes are not traced")
            cores = float(self.chip.compute.usable_cores)
            seconds = correction.seconds(family, {**sizes, **(moving or {})}, time, cores)
        else:
            key = (family, dtype, *sizes.values())
            if key not in self._along:
                self._along[key] = correction.along(family, sizes, tuple(moving))
            seconds = self._along[key](time.seconds, *moving.values())
        return self._no_faster(time, seconds, format_of(dtype), held)

    def _no_faster(self, time: KernelTime, seconds: Num, dtype: str, held: bool = False) -> KernelTime:
        """Replace the seconds of an analytical time, but never below the smaller of this time and the speed-of-light
        time; ``held`` as in ``_corrected``."""
        light = self.sol_seconds(time._replace(bytes=0.0 * time.bytes) if held else time, dtype)
        xp = functions_of(time.seconds)
        seconds = xp.maximum(seconds, xp.minimum(light, time.seconds)) * (time.seconds > 0.0)
        if not isinstance(seconds, np.ndarray | Traced):
            seconds = float(seconds)
        return time._replace(seconds=seconds, launch_s=xp.minimum(time.launch_s, seconds))

    def sol_seconds(self, time: KernelTime, dtype: str = "") -> Num:
        """Lower bound of a kernel's time in seconds, at the chip's memory bandwidth and peak FLOP/s. The peak is that
        of the stored operand's format ``dtype``, or of the chip's fastest format if empty."""
        bandwidth = self.chip.memory.bandwidth_bytes_per_s
        peak = self.chip.peak_flops(dtype) if dtype else max(self.chip.compute.dense_flops_per_s.values())
        return functions_of(time.flops).maximum(time.flops / peak, time.bytes / bandwidth)

    def gemm(self, m: Num, n: Num, k: Num, dtype: str = "bf16") -> KernelTime:
        """Time of ``y[m,n] = x[m,k] w[k,n]``.

        Args:
            m: rows (tokens).
            n: output features.
            k: input features.
            dtype: format of the weights; the formats that the chip supports determine the math format.
        """
        if MIXED in dtype:
            return by_format(dtype, lambda one: self.gemm(m, n, k, one))
        key = (m, n, k, dtype)
        scalar = all_plain(m, n, k)
        known = self._gemms.get(key) if scalar else None
        if known is not None:
            return known
        parameters = cast(GemmParameters, self.parameters("gemm", dtype))
        limits = self.limits(dtype)
        wide = 4.0 if dtype in ("fp32", "tf32") else 2.0
        native = self.chip.math_dtype(dtype) == dtype.removesuffix("_block")
        weight = dtype_bytes(dtype)
        activation = weight if native else wide

        def priced(xp: Functions, m: Num, n: Num, k: Num) -> KernelTime:
            time = gemm_time(xp, limits, parameters, m, n, k, weight, activation, wide)
            return with_static_scales(xp, limits, parameters, time, m, k) if self._static_scales else time

        result = self._corrected("gemm", dtype, evaluate_formula((m, n, k), priced), m=m, n=n, k=k)
        if scalar:
            if len(self._gemms) >= _CACHE_ENTRIES:
                self._gemms.clear()
            self._gemms[key] = result
        return result

    def attention_prefill(
        self, shape: AttentionShape, *, seqs: Num, q_tokens: Num, pairs: Num, kv_tokens: Num, joined: Num = 0.0
    ) -> KernelTime:
        """Time of one prefill attention launch over a ragged batch, from the totals of the batch.

        Corrections were learned on uncached prompts of equal length: the analytical extra time for cached keys
        and for unequal lengths is not corrected.

        Args:
            shape: heads, dimensions and KV format of one layer on this chip.
            seqs: sequences in the launch.
            q_tokens: new tokens, total.
            pairs: (query, key) pairs the mask admits, total.
            kv_tokens: KV lengths (cached and new), total.
            joined: 1 if the chunks share the launch of decode attention, which then counts there alone; else 0.
        """
        parameters = cast(PrefillParameters, self.parameters("attention_prefill", shape.kernel))
        limits = self._attention_limit(shape.dtype, parameters.native_math)

        def timed(pairs: Num, kv_tokens: Num) -> KernelTime:
            return evaluate_formula(
                (seqs, q_tokens, pairs, kv_tokens),
                lambda xp, *sizes: prefill_time(xp, limits, parameters, shape, *sizes),
            )

        time = timed(pairs, kv_tokens)
        if self.correction("attention_prefill", shape.kernel) is not None:
            xp = functions_of(time.seconds)
            each = q_tokens / xp.maximum(1, seqs)
            causal = xp.minimum(pairs, q_tokens * (each + 1.0) / 2.0)
            fresh = timed(causal, q_tokens)
            moving = {"batch": seqs, "q_len": each, "kv_len": each, "seen": causal / xp.maximum(1, q_tokens)}
            corrected = self._corrected("attention_prefill", shape.kernel, fresh, moving=moving, **_heads(shape))
            seconds = time.seconds + (corrected.seconds - fresh.seconds)
            time = self._no_faster(time, seconds, format_of(shape.kernel))
        shared_s = joined * time.launch_s
        time = time._replace(seconds=time.seconds - shared_s, launch_s=time.launch_s - shared_s)
        return time if self.flash else self._with_scores(shape, time, q_tokens * kv_tokens / np.maximum(1, seqs))

    def _with_scores(self, shape: AttentionShape, time: KernelTime, scores: Num, again: Num = 0.0) -> KernelTime:
        """Attention in three kernels that exchange the fp32 scores of each head through memory. Products with the keys,
        softmax in place, products with the values. Products of few queries are matrix-vector products: every query head
        reads again the keys and values that it shares with other heads (``again``, bytes).

        Source: ``ggml_mul_mat`` with broadcast heads in ``build_attn_mha`` (llama.cpp). In llama_bench.csv one more
        token of context takes Llama-3-70B (8 heads to a KV head) twice as many reads of its cache as the 8B (4).
        """
        moved = (SCORE_KERNELS * SCORE_BYTES * shape.num_heads * scores + again) * (time.seconds > 0.0)
        extra = self.elementwise(moved, np.minimum(2, scores))
        return KernelTime(*(one + more for one, more in zip(time, extra, strict=True)))

    def attention_decode(
        self, shape: AttentionShape, *, seqs: Num, q_len: Num, kv_tokens: Num, warm: bool = False, tail_kv: Num = 0.0
    ) -> KernelTime:
        """Time of one decode attention launch; ``q_len`` > 1 verifies speculated tokens.

        Corrections were learned on repeated calls over sequences of equal length: the analytical extra time for KV read
        from memory, and for a longer sequence, is not corrected.

        Args:
            shape: heads, dimensions and KV format of one layer on this chip.
            seqs: sequences.
            q_len: queries per sequence.
            kv_tokens: KV lengths (the new tokens included), total over the sequences.
            warm: the same KV was just read and may still be on the chip, as kernel benchmarks measure it.
            tail_kv: KV length of the longest sequence beyond the mean of the ``tail_sequences`` longest.
        """
        parameters = cast(DecodeParameters, self.parameters("attention_decode", shape.kernel))
        limits = self._attention_limit(shape.dtype, parameters.native_math)

        def timed(warm: bool, beyond: Num) -> KernelTime:
            return evaluate_formula(
                (seqs, q_len, kv_tokens),
                lambda xp, s, q, kv: decode_time(xp, limits, parameters, shape, s, q, kv, warm, tail_kv=beyond),
            )

        time = timed(warm, tail_kv)
        if self._split_kv and self.correction("attention_decode", shape.kernel) is not None:
            repeated = timed(True, 0.0)
            kept = kv_tokens * shape.kv_bytes_per_token / self.chip.on_chip.capacity_bytes
            each = {"batch": seqs, "q_len": q_len, "kv_len": kv_tokens / np.maximum(1, seqs), "kept": kept}
            corrected = self._corrected("attention_decode", shape.kernel, repeated, True, **each, **_heads(shape))
            seconds = time.seconds + (corrected.seconds - repeated.seconds)
            time = self._no_faster(time, seconds, format_of(shape.kernel), warm)
        if self.flash:
            return time
        again = (shape.num_heads / shape.num_kv_heads - 1) * kv_tokens * shape.kv_bytes_per_token
        return self._with_scores(shape, time, q_len * kv_tokens, again)

    def tail_seconds(self, shape: AttentionShape, seqs: Num, q_len: Num = 1) -> Num:
        """Seconds per key by which the longest sequence of a decode batch exceeds the mean of the ``tail_sequences``
        longest. Without KV splits, these sequences finish last.
        """
        parameters = cast(DecodeParameters, self.parameters("attention_decode", shape.kernel))
        xp = SCALAR if all_plain(seqs, q_len, 0) else ARRAY
        cores = self._attention_limit(shape.dtype, parameters.native_math).cores
        return tail_time_per_key(xp, parameters, cores, shape, seqs, q_len)

    def tail_sequences(self, shape: AttentionShape) -> Num:
        """Number of sequences left at the end of a decode batch that no longer saturate the memory bandwidth."""
        parameters = cast(DecodeParameters, self.parameters("attention_decode", shape.kernel))
        return tail_sequences(self._attention_limit(shape.dtype, parameters.native_math), parameters, shape)

    def one_pass(self, shape: AttentionShape) -> bool:
        """True if a single kernel serves the prompt chunks and the single queries of a batch."""
        return cast(PrefillParameters, self.parameters("attention_prefill", shape.kernel)).mixed == "one-pass"

    def attention_mixed(
        self,
        shape: AttentionShape,
        *,
        seqs: Num,
        q_tokens: Num,
        pairs: Num,
        kv_tokens: Num,
        decode_seqs: Num,
        decode_kv_tokens: Num,
        warm: bool = False,
        longest_kv: Num = 0.0,
        tail_kv: Num = 0.0,
    ) -> KernelTime:
        """Time of attention over prompt chunks and single-token sequences of one batch, all sizes > 0.

        Args:
            shape: heads, dimensions and KV format of one layer on this chip.
            seqs: prompt chunks; ``q_tokens``, ``pairs`` and ``kv_tokens`` as ``attention_prefill`` takes them.
            decode_seqs: sequences with one query each.
            decode_kv_tokens: KV lengths of these sequences, total.
            warm: the same KV was just read and may still be on the chip.
            longest_kv: KV length of the longest single-token sequence (single-kernel libraries); 0 = all equal.
            tail_kv: excess of the longest KV length over the mean of the ``tail_sequences`` longest (separate kernels).
        """
        parameters = cast(PrefillParameters, self.parameters("attention_prefill", shape.kernel))
        if parameters.mixed == "one-pass":
            limits = self._attention_limit(shape.dtype, parameters.native_math)
            time = evaluate_formula(
                (seqs, q_tokens, pairs, kv_tokens, decode_seqs, decode_kv_tokens),
                lambda xp, s, q, p, kv, ds, dkv: one_pass_time(
                    xp, limits, parameters, shape, s, q, p, kv, ds, dkv, longest_kv
                ),
            )
            scores = q_tokens * kv_tokens / np.maximum(1, seqs) + decode_kv_tokens
            return time if self.flash else self._with_scores(shape, time, scores)
        first = self.attention_prefill(shape, seqs=seqs, q_tokens=q_tokens, pairs=pairs, kv_tokens=kv_tokens)
        second = self.attention_decode(
            shape, seqs=decode_seqs, q_len=1, kv_tokens=decode_kv_tokens, warm=warm, tail_kv=tail_kv
        )
        shorter = np.minimum(first.launch_s, second.launch_s)
        shorter = shorter if isinstance(first.seconds, np.ndarray) else float(shorter)
        parts = [one + two for one, two in zip(first, second, strict=True)]
        return KernelTime(parts[0] - shorter, parts[1] - shorter, *parts[2:])

    def moe(
        self,
        *,
        tokens: Num,
        num_experts: Num,
        experts_per_token: Num,
        hidden: Num,
        intermediate: Num,
        dtype: str = "bf16",
        expert_parallel: Num = 1,
        tensor_parallel: Num = 1,
        gated: bool = True,
        active_experts: Num | None = None,
        routing: str = "uniform",
        alike: Num = 1.0,
        dispatched: bool = False,
        kernel: str = "",
        mean_work: bool = False,
    ) -> KernelTime:
        """Time of one layer's routed feed-forward (both projections) on one chip.

        Args:
            tokens: number of tokens routed in the whole expert-parallel group.
            num_experts: number of experts in the layer, over all chips.
            experts_per_token: number of experts chosen per token.
            hidden: model width.
            intermediate: width of one expert before tensor parallelism.
            dtype: format of the expert weights.
            expert_parallel: chips that share the experts.
            tensor_parallel: chips that share each expert.
            gated: gate and up projections instead of up alone.
            active_experts: number of distinct experts that the tokens reach; None = expected value of the routing.
            routing: how tokens spread over the experts: balanced, uniform (random), identical (all pick the same),
                power-law-ALPHA or zipf-ALPHA.
            alike: size of groups of tokens with the same experts, >= 1: n tokens reach as many experts as n / alike.
            dispatched: whether an all-to-all sends each chip only the tokens of its own experts.
            kernel: name of the kernel if the library has several for a dtype; its own fit is used if available.
            mean_work: report flops and bytes of the average chip instead of the slowest, which sets the time.
        """
        spread = read_routing(routing)
        limits = self.limits(self._kernels_of("moe", dtype))
        weight = dtype_bytes(dtype)
        layer = {"tokens": tokens, "num_experts": num_experts, "experts_per_token": experts_per_token, "hidden": hidden,
                 "intermediate": intermediate, "expert_parallel": expert_parallel,
                 "tensor_parallel": tensor_parallel}  # fmt: skip
        sizes = (*layer.values(), alike)
        if active_experts is not None:
            sizes = (*sizes, active_experts)
        uneven = spread.alpha if spread.kind == "power-law" else 0.0

        def evaluated(parameters: MoeParameters) -> KernelTime:
            return evaluate_formula(
                sizes,
                lambda xp, n, e, k, h, i, ep, tp, same, active=None: moe_time(
                    xp, limits, parameters, n, e, k, h, i, weight, 2.0, ep, tp, gated, active, spread, same, dispatched
                ),
            )

        def timed(kernel: str) -> KernelTime:
            named = f"{dtype}{VARIANT}{kernel}" if kernel else dtype
            parameters = cast(MoeParameters, self.parameters("moe", named))
            time = self._corrected("moe", named, evaluated(parameters), uneven=uneven, **layer)
            if not (self._wide_tiles and dtype == "fp8_block"):
                return time
            wide = evaluated(parameters.model_copy(update=WIDE_TILES))
            slower = np.less(tokens, WIDE_TILES_BELOW) & np.greater(wide.seconds, time.seconds)
            return times_where(slower, wide, time)

        chosen = kernel or self._kernel_of_spread(dtype, np.min(expert_parallel))
        time = timed(chosen)
        for ranks in () if kernel or np.ndim(expert_parallel) == 0 else np.unique(expert_parallel):
            if (other := self._kernel_of_spread(dtype, ranks)) != chosen:
                time = times_where(np.equal(expert_parallel, ranks), timed(other), time)
        if not mean_work or np.all(np.equal(expert_parallel, 1)):
            return time
        some = np.maximum(1.0, tokens)
        factor = slowest_rank_factor(ARRAY, spread, some, num_experts, experts_per_token, expert_parallel)
        return time._replace(flops=time.flops / factor, bytes=time.bytes / factor)

    def _kernel_of_spread(self, dtype: str, expert_parallel: Num) -> str:
        """Name of the library's kernel for this expert-parallel size; empty if one kernel covers all. Its fits may
        distinguish whole experts on every chip from experts spread over chips.

        On Hopper, vLLM runs block-fp8 experts in Triton kernels, or with expert parallelism in FlashInfer's CUTLASS
        (kernel_source of NVIDIA's tables of v0.24).
        """
        for name, parameters in self._model.kernels.get(self.library, {}).get("moe", {}).items():
            low, high = (parameters.fit.ranges if parameters.fit else {}).get("expert_parallel", (1.0, np.inf))
            one_of_two = VARIANT in name and format_of(name) == dtype and (low > 1 or high == 1)
            kernel = name.split(VARIANT)[-1]
            if one_of_two and low <= expert_parallel <= high and not kernel.startswith(DISPATCHED):
                return kernel
        return ""

    def elementwise(
        self,
        bytes_moved: Num,
        launches: Num = 1,
        *,
        warm: bool = False,
        element_bytes: float = 2.0,
        pieces: Num = 0.0,
        kernel: str = "",
    ) -> KernelTime:
        """Time of memory-bound passes: norms, activations, residuals, RoPE, gathers, sampling.

        Args:
            bytes_moved: bytes read and written over all launches.
            launches: number of kernel launches.
            warm: the same operands were just moved and may still be on the chip, as kernel benchmarks measure it.
            element_bytes: bytes per element.
            pieces: work items that a core processes one by one: channels of each sequence in a convolution.
            kernel: ``copy`` for plain copies, ``gdn-scan`` or similar for convolutions, which use their own fit
                if available.
        """
        name = f"any{VARIANT}{kernel}" if kernel else "any"
        parameters = cast(ElementwiseParameters, self.parameters("elementwise", name))
        limits = self._attention_limit("bf16", False)
        return evaluate_formula(
            (bytes_moved, launches),
            lambda xp, b, n: elementwise_time(xp, limits, parameters, b, n, warm, element_bytes, pieces),
        )

    def recurrent_prefill(self, shape: RecurrentShape, *, seqs: Num, q_tokens: Num) -> KernelTime:
        """Time of a recurrent layer's scan over the ``q_tokens`` of ``seqs`` prompt chunks."""
        parameters = cast(RecurrentPrefillParameters, self.parameters("recurrent_prefill", shape.dtype))
        limits = self.limits(format_of(shape.dtype))
        time = evaluate_formula(
            (seqs, q_tokens), lambda xp, *sizes: recurrent_prefill_time(xp, limits, parameters, shape, *sizes)
        )
        each = q_tokens / functions_of(seqs).maximum(1, seqs)
        return self._corrected_recurrent("recurrent_prefill", shape, time, seqs, each)

    def recurrent_decode(self, shape: RecurrentShape, *, seqs: Num, q_len: Num, warm: bool = False) -> KernelTime:
        """Time of a recurrent layer's update of the states of ``seqs`` sequences; ``q_len`` > 1 verifies tokens.

        ``warm``: the same states were just updated and may still be on the chip, as kernel benchmarks measure it.
        """
        parameters = cast(RecurrentDecodeParameters, self.parameters("recurrent_decode", shape.dtype))
        limits = self.limits(format_of(shape.dtype))
        time = evaluate_formula(
            (seqs, q_len), lambda xp, s, q: recurrent_decode_time(xp, limits, parameters, shape, s, q, warm)
        )
        return self._corrected_recurrent("recurrent_decode", shape, time, seqs, q_len, warm)

    def _corrected_recurrent(
        self, family: str, shape: RecurrentShape, time: KernelTime, seqs: Num, q_len: Num, held: bool = False
    ) -> KernelTime:
        heads = {"num_heads": shape.value_heads, "num_kv_heads": shape.key_heads}
        return self._corrected(family, shape.dtype, time, held, {"batch": seqs, "q_len": q_len}, **heads)

    def index_prefill(self, shape: IndexShape, *, seqs: Num, q_tokens: Num, pairs: Num, kv_tokens: Num) -> KernelTime:
        """Time of scoring and selecting keys for prompts; sizes as ``attention_prefill`` takes them."""
        return self._sparse("prefill", index_time, shape.math, shape, seqs, q_tokens, pairs, kv_tokens)

    def index_decode(self, shape: IndexShape, *, seqs: Num, q_len: Num, kv_tokens: Num) -> KernelTime:
        """Time of scoring and selecting keys for decoding sequences; sizes as ``attention_decode`` takes them."""
        return self._sparse("decode", index_time, shape.math, shape, seqs, q_len, kv_tokens)

    def sparse_prefill(self, shape: SparseShape, *, seqs: Num, q_tokens: Num, pairs: Num, kv_tokens: Num) -> KernelTime:
        """Time of attention over chosen or compressed entries for prompts. Sizes as ``attention_prefill`` takes them,
        counted over tokens that the readable entries represent."""
        return self._sparse("prefill", sparse_time, "bf16", shape, seqs, q_tokens, pairs, kv_tokens)

    def sparse_decode(self, shape: SparseShape, *, seqs: Num, q_len: Num, kv_tokens: Num) -> KernelTime:
        """Time of attention over chosen or compressed entries for decoding sequences. Sizes as ``attention_decode``
        takes them, counted over tokens that the readable entries represent."""
        return self._sparse("decode", sparse_time, "bf16", shape, seqs, q_len, kv_tokens)

    def _sparse(
        self, phase: str, formula: Callable[..., KernelTime], math: str, shape: IndexShape | SparseShape, *sizes: Num
    ) -> KernelTime:
        parameters, limits = self.parameters(f"sparse_{phase}", shape.dtype), self.limits(math)

        def timed(xp: Functions, *sizes: Num) -> KernelTime:
            if phase == "decode":
                seqs, q_len, kv_tokens = sizes
                sizes = (seqs, seqs * q_len, q_len * kv_tokens, kv_tokens)
            return formula(xp, limits, parameters, shape, *sizes)

        return evaluate_formula(sizes, timed)

    def collective(self, op: str, message_bytes: Num, world_size: int, link: Link | str) -> CollectiveTime:
        """Time of one collective between ``world_size`` chips.

        Args:
            op: all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.
            message_bytes: bytes of the whole tensor (all_gather: of its output; all_to_all: bytes that one chip sends).
            world_size: chips taking part; 1 takes no time.
            link: link between the chips, a profile or a catalogue name.

        Raises:
            ProfileError: no such collective or link, world size below 1, or a negative size.
        """
        if world_size < 1:
            raise ProfileError(f"world_size is {world_size}; it must be at least 1")
        connection = load_link(link) if isinstance(link, str) else link
        parameters = cast(CollectiveParameters, self.parameters("collective", "any"))
        result = evaluate_formula(
            (message_bytes,), lambda xp, size: collective_time(xp, parameters, connection, op, size, max(world_size, 2))
        )
        return CollectiveTime(*(0.0 * part for part in result)) if world_size == 1 else result

    def _choose(self, family: str, dtype: str) -> tuple[FamilyParameters, str]:
        key = (family, dtype)
        if key not in self._chosen:
            library = self._reductions if family == "collective" else self.library
            parameters, basis = find_parameters(self._fitted, library, family, self._kernels_of(family, dtype))
            if self._older:
                parameters, basis = parameters.carried(True, False), "extrapolated" if basis == "calibrated" else basis
            if isinstance(parameters, DecodeParameters) and not self._split_kv:
                parameters = parameters.without_splits()
            self._chosen[key] = (parameters, basis)
        return self._chosen[key]

    def _kernels_of(self, family: str, dtype: str) -> str:
        return (
            "int4"
            if self._marlin and family == "moe" and dtype in ("mxfp4", "mxfp4_mxfp8", "fp4", "nvfp4a16")
            else dtype
        )

    def limits(self, dtype: str) -> Limits:
        """Limits that the formulas use for weights of a dtype: peak of the usable cores, memory, on-chip store."""
        if dtype not in self._limits:
            chip = self.chip
            peak = chip.peak_flops(dtype)
            self._limits[dtype] = Limits(
                peak * chip.compute.usable_cores / chip.compute.cores,
                float(chip.compute.usable_cores),
                chip.memory.bandwidth_bytes_per_s,
                chip.on_chip.capacity_bytes,
                chip.on_chip.bandwidth_bytes_per_s,
                chip.on_chip.multicast,
                chip.compute.asynchronous,
                _vector_flops(chip, peak),
                chip.compute.clock_hz or 0.0,
                *core_shares(chip),
            )
        return self._limits[dtype]

    def _attention_limit(self, dtype: str, native: bool) -> Limits:
        """Limits for attention math: in the cache's format if that is a plain float or the kernel multiplies
        natively."""
        if native or dtype in ("fp32", "fp16", "bf16"):
            return self.limits(dtype)
        dtype_bytes(dtype)
        return self.limits("bf16")


def _vector_flops(chip: Chip, peak: float) -> float:
    """Operations per second of the vector units that unpack weights and multiply packed 8-bit integers.

    A GPU core issues 128 lanes of operations per cycle, whatever its fp32 rate (64 lanes on A100 and RDNA 2, twice 128
    on RDNA 3); other chips use the fp32 peak.
    """
    compute = chip.compute
    if chip.kind == "cpu" or compute.clock_hz is None:
        return compute.dense_flops_per_s.get("fp32", peak) * compute.usable_cores / compute.cores
    return LANE_FLOPS * compute.usable_cores * compute.clock_hz
