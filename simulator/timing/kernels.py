"""The kernels of an engine step: calls of an architecture, the time of each call, and their sum.

The kernel list alone determines a step's time. ``*_calls`` list the calls, ``price`` gives time and evidence of one
call, ``Costs`` sums the kernels; tables for single steps are built from the same calls (``simulator.timing.step``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.recent import RecentResults
from hwprofiles import BASES, AttentionShape, KernelLibrary, KernelTime, Link, weakest
from hwprofiles.dtypes import VARIANT
from hwprofiles.formulas import ARRAY, Num, look_up
from hwprofiles.kernels.moe import read_routing, slowest_rank_factor
from hwprofiles.kernels.recurrent import RecurrentShape, convolution
from hwprofiles.kernels.sparse import IndexShape
from hwprofiles.library import MixingShape
from simulator.llm.layers import Attention, Layer, Mixer, MoeMlp
from simulator.llm.mixers import CompressedAttention, Recurrent, SelectiveAttention, SharedKvAttention, ShortConvolution
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment
from simulator.timing.framework import ElementwiseKernels
from simulator.timing.work import StepWork

NORM_KERNELS = 4.0
"""Passes over the activations of a fused add and RMSNorm: it reads and writes input and residual."""
LOGIT_KERNELS = 3.0
"""Passes over fp32 logits in sampling: log-softmax (read, write) and the draw (vLLM's sampler works in fp32)."""
LOGIT_BYTES = 4.0
FP8_DISPATCH_BYTES = 1.0
"""Bytes per element sent to fp8 experts; outputs return in bf16 (DeepEP, README: FP8 dispatch, BF16 combine)."""
OWN_EXPERTS = 0.54
"""Number of independent tokens that reach as many new experts as one further token of the same sequence.

Four consecutive tokens reach 2.5 times the experts of one token (Cohere, "Why MoE models get more from speculative
decoding", 2026-04; 38 % of a token's experts are those of the previous token). With 8 of 128 experts, four independent
tokens would reach 3.64 times as many, and 2.63 of them 2.5 times: (2.63 - 1) / 3."""
SHARED = "shared_experts."
"""Prefix of the names of shared experts' kernels."""
NEGLIGIBLE = 0.05
"""Maximum share of device time at which an evidence level is ignored in a run's basis."""
CELL_TOKENS_PER_SEQUENCE = 16
MAX_CELL_TOKENS = 256
"""Spacing of the contexts between which decode attention is interpolated: 16 tokens per sequence, at most 256 in all.

The kernel's time is linear in its keys except at a further split or wave; such a jump spreads over one cell."""


class Call(NamedTuple):
    """Identical kernel calls of a model in a step, or in each of many steps (with arrays as numbers)."""

    name: str
    op: str
    """Method of ``KernelLibrary`` that prices the call."""
    sizes: Mapping[str, Num]
    """Arguments of the method, by name."""
    times: Num = 1
    window: int | None = None
    """Attention window of the layer, in tokens; None for full attention and other kernels."""
    wait_s: float = 0.0
    """Seconds that a collective waits for its slowest rank."""
    library: KernelLibrary | None = None
    """Kernel library of the chip that runs the call; None for the layer's own chip."""
    beside: Num = False
    """Nonzero if the call overlaps longer kernels on another stream: it then adds only its minimum time."""


class Kernel(NamedTuple):
    """Identical kernels of a step on one chip with their price; numbers may be arrays over many steps."""

    name: str
    family: str
    """Kernel family: gemm, attention, index, sparse, recurrent, moe, elementwise or collective; or host, for exposed
    work of the CPU."""
    dtype: str
    """Dtype of the stored operand; empty without one."""
    times: Num
    time: KernelTime
    """Time of one such kernel."""
    basis: Num = 0
    """Evidence level of the time: index into ``hwprofiles.BASES``."""
    sol_s: Num = 0.0
    """Speed-of-light seconds of one of these equal kernels, at the chip's peak."""
    fitted: tuple[str, str] = ("", "")
    """Family and format of the parameter set that priced the kernel."""
    sizes: Mapping[str, Num] = {}
    """Sizes of the kernel, keyed by the column names of a kernel trace."""
    exposed: Num = 1.0
    """Factor from the kernel's time to its part of the step; not 1 if it overlaps other kernels or waits."""

    @property
    def seconds(self) -> Num:
        """Seconds of one such kernel."""
        return self.time.seconds

    @property
    def step_s(self) -> Num:
        """Seconds that all of these equal kernels add to the step."""
        return self.times * self.exposed * self.seconds

    @property
    def flops(self) -> Num:
        """Useful floating-point operations of one such kernel."""
        return self.time.flops

    @property
    def bytes(self) -> Num:
        """Bytes moved by one such kernel; for a collective, the size of its message."""
        return self.time.bytes

    @property
    def bound(self) -> Num:
        """Resource that limits the kernel."""
        return {"collective": "interconnect", "host": "host"}.get(self.family) or self.time.bound

    def row(self, index: int) -> Kernel:
        """Kernel of step ``index`` of many steps, as plain numbers."""

        def one(value: Num) -> Num:
            return value[index].item() if isinstance(value, np.ndarray) else value

        time = KernelTime(*map(one, self.time))
        basis, sol_s, exposed = one(self.basis), one(self.sol_s), one(self.exposed)
        return self._replace(times=one(self.times), time=time, basis=basis, sol_s=sol_s, exposed=exposed)


def running(kernels: Iterable[Kernel], row: int = 0) -> list[Kernel]:
    """Kernels that take time in step ``row`` of many steps, as plain numbers."""
    return [one for one in (kernel.row(row) for kernel in kernels) if one.times and one.seconds > 0]


def other_device_kernel(name: str, family: str, seconds: Num, present: Num = 1) -> Kernel:
    """Kernel object for time outside the chips' kernels: ``host`` work, or a message in transit (``collective``)."""
    return Kernel(name, family, "", present, KernelTime(seconds, 0.0, 0.0, seconds, 0.0, 0.0))


class Evidence(NamedTuple):
    """Shares of device time by the kernels' evidence level; they sum to 1."""

    calibrated: float
    extrapolated: float
    datasheet: float

    @classmethod
    def of(cls, sums: Num) -> Evidence:
        """Shares of an object with ``calibrated_s``, ``extrapolated_s`` and ``datasheet_s``; (1, 0, 0) for no time."""
        seconds = [float(np.sum(getattr(sums, f"{name}_s"))) for name in cls._fields]
        total = sum(seconds)
        return cls(*(part / total for part in seconds)) if total > 0 else cls(1.0, 0.0, 0.0)

    @property
    def basis(self) -> str:
        """The weakest evidence level that accounts for more than ``NEGLIGIBLE`` of the time."""
        return weakest(name for name, share in self._asdict().items() if share > NEGLIGIBLE)


@dataclass(slots=True)
class Costs:
    """Seconds by bound, useful work and evidence, summed over kernels; every field an array over the same steps."""

    compute_s: FloatArray
    memory_s: FloatArray
    interconnect_s: FloatArray
    latency_s: FloatArray
    host_s: FloatArray
    flops: FloatArray
    bytes: FloatArray
    calibrated_s: FloatArray
    """Seconds on the device of kernels fitted on the chip, at shapes within the fitted range."""
    extrapolated_s: FloatArray
    """Seconds on the device of kernels with shapes or operand formats outside the fitted ones."""
    datasheet_s: FloatArray
    """Seconds on the device of kernels that were never measured on the chip."""
    sol_s: FloatArray
    """Speed-of-light seconds of the kernels at the chip's peak, one after the other."""

    @classmethod
    def zeros(cls, size: int) -> Costs:
        """Zero costs for ``size`` steps."""
        return cls(*(np.zeros(size) for _ in cls.__slots__))

    @classmethod
    def of(cls, kernels: Iterable[Kernel], size: int) -> Costs:
        """Costs of ``size`` steps, summed over a list of kernels."""
        total = cls.zeros(size)
        for kernel in kernels:
            total.add_kernel(kernel)
        return total

    def add_kernel(self, kernel: Kernel) -> None:
        """Add equal kernels. Launches count as latency; of the remaining time, the shorter of compute and memory counts
        only its exposed part, and the longer of the two counts all else."""
        time, count = kernel.time, kernel.times * kernel.exposed
        seconds = count * np.asarray(time.seconds)
        if kernel.family == "host":
            self.host_s += seconds
            return
        for code, name in enumerate(BASES):
            getattr(self, f"{name}_s").__iadd__(np.where(np.equal(kernel.basis, code), seconds, 0.0))
        self.sol_s += count * np.asarray(kernel.sol_s)
        if kernel.family == "collective":
            self.interconnect_s += seconds
            return
        body, longer = np.asarray(time.seconds) - time.launch_s, np.maximum(time.compute_s, time.memory_s)
        exposed = np.clip(body - longer, 0.0, np.minimum(time.compute_s, time.memory_s))
        compute = np.where(np.asarray(time.compute_s) >= np.asarray(time.memory_s), body - exposed, exposed)
        self.compute_s += count * compute
        self.memory_s += count * (body - compute)
        self.latency_s += count * np.asarray(time.launch_s)
        self.flops += kernel.times * np.asarray(time.flops)
        self.bytes += kernel.times * np.asarray(time.bytes)

    @property
    def device_s(self) -> FloatArray:
        return self.compute_s + self.memory_s + self.interconnect_s + self.latency_s

    @property
    def evidence(self) -> Evidence:
        """Evidence of all entries together."""
        return Evidence.of(self)

    def add(self, other: Costs, times: FloatArray | float = 1.0) -> None:
        """Add ``other``, multiplied by ``times``."""
        for name in self.__slots__:
            getattr(self, name).__iadd__(getattr(other, name) * times)

    def rows(self, index: Num) -> Costs:
        """Costs of the entries selected by ``index``."""
        return Costs(*(getattr(self, name)[index] for name in self.__slots__))

    def repeated(self, times: IntArray) -> Costs:
        """Repeat each entry ``times`` times."""
        return Costs(*(np.repeat(getattr(self, name), times) for name in self.__slots__))

    def put(self, index: Num, other: Costs) -> None:
        """Set the entries selected by ``index`` to the entries of ``other``."""
        for name in self.__slots__:
            getattr(self, name)[index] = getattr(other, name)


PARAMETERS = {
    "attention_mixed": "attention_prefill",
    "index_prefill": "sparse_prefill",
    "index_decode": "sparse_decode",
}
"""Parameter family of an operation, if it differs from the operation's name."""


class CellEnds(Protocol):
    """Table of decode attention at the ends of cells of contexts."""

    def ends(self, seqs: IntArray, query_len: Num, cells: IntArray) -> tuple[FloatArray, FloatArray] | None:
        """Seconds at both ends of the cell of each step; None if the table would be larger than the steps."""


def price(call: Call, library: KernelLibrary, table: CellEnds | None = None) -> Kernel:
    """Time and evidence level of one kernel call; ``table``: table of the same decode attention, if there is one."""
    sizes, library = call.sizes, call.library or library
    if call.op == "collective":
        taken = library.collective(**sizes)
        message = sizes["message_bytes"]
        seconds = np.where(message > 0, taken.seconds + call.wait_s, 0.0)
        time = KernelTime(seconds, taken.latency_s, 0.0, taken.transfer_s, 0.0, message)
        basis = library.basis_code("collective", "any", {**sizes})
        return Kernel(call.name, "collective", "", call.times, time, basis)
    shape = sizes.get("shape")
    between = call.op.endswith("_decode") and not isinstance(shape, RecurrentShape)
    priced = decode_attention(library, call.op, **sizes, table=table) if between else _timed(library, call.op, sizes)
    dtype = shape.dtype if shape is not None else sizes.get("dtype", "")
    family = PARAMETERS.get(call.op, call.op)
    kernel = shape.kernel if isinstance(shape, AttentionShape) else dtype
    if call.op == "moe" and sizes["kernel"]:
        kernel = VARIANT.join((dtype, sizes["kernel"]))
    stored = VARIANT.join(("any", sizes["kernel"])) if "kernel" in sizes and call.op == "elementwise" else "any"
    fitted, named = (family, kernel or stored), kernel_sizes(call)
    basis = library.basis_code(*fitted, named)
    sol_s = library.sol_seconds(priced, "" if shape is not None else dtype)
    one = Kernel(call.name, call.op.partition("_")[0], dtype, call.times, priced, basis, sol_s, fitted, named)
    if not np.any(call.beside):
        return one
    least = np.minimum(1.0, sol_s / np.maximum(priced.seconds, 1e-30))
    return one._replace(exposed=np.where(call.beside, least, 1.0))


_RECENT_TIMES: RecentResults[KernelTime] = RecentResults(256)
_LONGEST_KEPT = 4096
"""Maximum number of elements of a size array whose kernel times are memoised."""


def _timed(library: KernelLibrary, op: str, sizes: Mapping[str, Num]) -> KernelTime:
    """Kernel time, computed once for equal sizes. Equal rows of long arrays are merged; results of short arrays are
    memoised by library, operation and sizes.

    Tables of engines that differ only in captured graphs have equal counts beyond the graphs' sizes.
    """
    arrays = {name: value for name, value in sizes.items() if isinstance(value, np.ndarray)}

    def timed(some: Mapping[str, Num]) -> KernelTime:
        time: KernelTime = getattr(library, op)(**{**sizes, **some})
        return time

    def kept() -> KernelTime:
        time = timed(arrays)
        for part in time:
            if isinstance(part, np.ndarray):
                part.flags.writeable = False
        return time

    if not arrays:
        return timed(arrays)
    if max(value.size for value in arrays.values()) > _LONGEST_KEPT:
        columns = np.broadcast_arrays(*arrays.values())
        first, inverse = _distinct(columns)
        time = timed({name: column.flat[first] for name, column in zip(arrays, columns, strict=True)})
        return KernelTime(*(part[inverse] if isinstance(part, np.ndarray) else part for part in time))
    return _RECENT_TIMES.get((library, op, *sizes, *sizes_key(*sizes.values())), kept)


_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64)
"""Odd factors of a hash function of sizes."""


def _distinct(columns: Sequence[NDArray[Any]]) -> tuple[IntArray, IntArray]:
    """Indices of the distinct rows of ``columns``, and for every row the index of its distinct row."""
    flat = [column.ravel() for column in columns]
    runs, lengths = equal_neighbours(*flat)
    label = np.zeros(len(runs), dtype=np.uint64)
    for number, column in enumerate(flat):
        label = (label ^ column[runs].astype(np.float64).view(np.uint64)) * _ODD[number % len(_ODD)]
        label ^= label >> np.uint64(29)
    order = np.argsort(label)
    starts = np.append(True, np.diff(label[order]) != 0)
    inverse = np.empty(len(runs), dtype=np.int64)
    inverse[order] = np.cumsum(starts) - 1
    first = runs[order[starts]]
    if not all(np.array_equal(column[first][inverse], column[runs]) for column in flat):
        first, inverse = runs, np.arange(len(runs))
    return first, np.repeat(inverse, lengths).reshape(columns[0].shape)


def equal_neighbours(*columns: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """First row and length of each run of equal rows of ``columns``: consecutive steps are often equal.

    >>> equal_neighbours(np.array([5, 5, 7, 5]))
    (array([0, 2, 3]), array([2, 1, 1]))
    """
    size = len(columns[0])
    changes = np.ones(size, dtype=np.bool_)
    changes[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    first = np.flatnonzero(changes)
    return first, np.diff(first, append=size)


def sizes_key(*sizes: Num) -> tuple[Num, ...]:
    """Cache key of a kernel's sizes; equal arrays have equal keys."""
    return tuple((v.dtype, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in sizes)


def kernel_sizes(call: Call) -> dict[str, Num]:
    """Sizes of a call, keyed by the column names of a kernel trace, as in the ranges of the fits."""
    sizes, shape = call.sizes, call.sizes.get("shape")
    if shape is None:
        return {**sizes, "projections": 0 if sizes.get("gated", True) else 2}
    seqs = np.maximum(1, sizes["seqs"])
    decoding = call.op.endswith("_decode")
    if isinstance(shape, RecurrentShape):
        return {
            "batch": sizes["seqs"],
            "q_len": sizes["q_len"] if decoding else sizes["q_tokens"] / seqs,
            "num_heads": shape.value_heads,
            "num_kv_heads": shape.key_heads,
            "head_dim": shape.key_dim,
            "v_head_dim": shape.value_dim,
        }
    return {
        "batch": sizes["seqs"],
        "q_len": sizes["q_len"] if decoding else sizes["q_tokens"] / seqs,
        "kv_len": sizes["kv_tokens"] / seqs,
    } | ({} if not isinstance(shape, AttentionShape) else {
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.qk_dim,
        "v_head_dim": 0 if shape.v_dim == shape.qk_dim else shape.v_dim,
        "window": call.window or 0,
    })  # fmt: skip


def cell_tokens(seqs: Num) -> Num:
    """Spacing of the contexts between which decode attention of ``seqs`` sequences is interpolated."""
    return np.minimum(CELL_TOKENS_PER_SEQUENCE * seqs, MAX_CELL_TOKENS)


def between_cells(formula: Num, seqs: IntArray, keys: Num, at_ends: Callable[[Num], Num] | None = None) -> FloatArray:
    """Interpolate ``formula`` between the key counts at both ends of each step's cell; the first cell begins at one
    key. ``at_ends`` returns known values at both ends by cell, or None."""
    width = cell_tokens(np.maximum(1, seqs))
    cell = keys // width
    known = None if at_ends is None else at_ends(cell)
    if known is None:
        ends = np.where(cell > 0, cell * width, np.minimum(keys, 1)), np.where(keys > 0, (cell + 1) * width, 0)
        known = np.asarray(formula(np.array(ends)))
    low, high = known
    interpolated: FloatArray = low + (keys - cell * width) * ((high - low) / width)
    return interpolated


def decode_attention(
    library: KernelLibrary,
    op: str,
    shape: MixingShape,
    seqs: IntArray,
    q_len: Num,
    kv_tokens: IntArray,
    tail_kv: Num = 0.0,
    table: CellEnds | None = None,
) -> KernelTime:
    """Decode attention of many steps by formula, with seconds interpolated between contexts.

    Args:
        library: kernel library of the chip.
        op: method of the library.
        shape: attention shape of the layer.
        seqs: number of decoding sequences.
        q_len: queries per sequence.
        kv_tokens: total keys that the sequences read.
        tail_kv: long-context tail, as ``StepWork.tail_kv``.
        table: table of the same kernel, as used for single steps.
    """
    # Work and launch are physics', whatever was learned of the seconds.
    exact: KernelTime = getattr(library.reading(False), op)(shape, seqs=seqs, q_len=q_len, kv_tokens=kv_tokens)

    def seconds(keys: IntArray) -> Num:
        return _timed(library, op, {"shape": shape, "seqs": seqs, "q_len": q_len, "kv_tokens": keys}).seconds

    tail_s = library.tail_seconds(shape, seqs, q_len) * tail_kv if isinstance(shape, AttentionShape) else 0.0

    def at_ends(cells: IntArray) -> Num:
        return None if table is None else table.ends(np.maximum(1, seqs), np.maximum(1, q_len), cells)

    total_s = between_cells(seconds, seqs, kv_tokens, at_ends) * (exact.seconds > 0) + tail_s
    return exact._replace(seconds=total_s, launch_s=np.minimum(exact.launch_s + tail_s, total_s))


def alike_tokens(query_len: Num) -> Num:
    """Tokens per independent choice of experts if each sequence has ``query_len`` consecutive tokens.

    >>> round(alike_tokens(4), 2)
    1.53
    """
    return query_len / (1.0 + OWN_EXPERTS * (query_len - 1))


def collective(name: str, deployment: Deployment, op: str, message_bytes: Num, times: Num = 1) -> Iterator[Call]:
    """Collective among the chips of a tensor-parallel group; empty for a single chip."""
    if deployment.tensor_parallel == 1 or deployment.link is None:
        return
    sizes = {"op": op, "message_bytes": message_bytes, "world_size": deployment.tensor_parallel}
    yield Call(name, "collective", sizes | {"link": deployment.link}, times, wait_s=deployment.skew_s)


def embedding_calls(deployment: Deployment, tokens: IntArray) -> Iterator[Call]:
    """Embedding look-up of ``tokens`` rows, on the first stage."""
    if not deployment.first_stage:
        return
    rows = tokens * deployment.architecture.hidden_size * deployment.activation_bytes
    yield Call("embedding", "elementwise", {"bytes_moved": 2 * rows, "launches": np.minimum(tokens, 1)})
    yield from collective("embedding all-reduce", deployment, "all_reduce", rows)


def layer_calls(deployment: Deployment, layer: Layer, tokens: IntArray, query_len: Num = 1) -> Iterator[Call]:
    """Calls of one layer without attention and collectives, and without experts if attention groups share them.

    Args:
        deployment: the model on its chips.
        layer: layer of the model.
        tokens: tokens that the layer computes.
        query_len: consecutive tokens per sequence among ``tokens``.
    """
    hidden, present = deployment.architecture.hidden_size, np.minimum(tokens, 1)
    hidden_shared = tokens <= deployment.shared_overlap_tokens

    def beside(name: str) -> Num:
        return name.startswith(SHARED) & hidden_shared

    for gemm in deployment.gemms(layer):
        sizes = {"m": tokens, "n": gemm.n, "k": gemm.k, "dtype": gemm.dtype}
        yield Call(gemm.name, "gemm", sizes, beside=beside(gemm.name))
    for name, elements, launches in layer_elementwise(deployment, layer, hidden):
        moved = tokens * elements * deployment.activation_bytes
        sizes = {"bytes_moved": moved, "launches": launches * present}
        yield Call(name, "elementwise", sizes, beside=beside(name))
    if isinstance(layer.feed_forward, MoeMlp) and deployment.attention_data_parallel == 1:
        experts = expert_call(deployment, layer.feed_forward, tokens, query_len)
        if layer.feed_forward.on_other_device and deployment.experts_at is not None:
            yield experts._replace(library=deployment.experts_at.kernels)
            yield p2p_send(deployment, tokens, deployment.experts_at.link, times=2)
        else:
            yield experts


def p2p_send(deployment: Deployment, tokens: IntArray, link: Link, times: int = 1) -> Call:
    """P2P send of the residual stream of ``tokens`` tokens to another chip of the machine."""
    message = tokens * deployment.architecture.hidden_size * deployment.activation_bytes
    sizes = {"op": "send_recv", "message_bytes": message, "world_size": 2, "link": link}
    return Call("p2p-send", "collective", sizes, times)


def layer_elementwise(deployment: Deployment, layer: Layer, hidden: int) -> list[tuple[str, float, int]]:
    """Elementwise passes of one layer on one chip: (name, elements that a token moves, launches).

    Args:
        deployment: the model on its chips.
        layer: layer of the model.
        hidden: width of the residual stream.
    """
    mlp, parts = layer.feed_forward, layer_parts(layer)
    norms = layer.norms if deployment.passes.every_norm else parts
    kernels = [("norms", norms * NORM_KERNELS * hidden, 0 if deployment.norms_in_reductions else norms)]
    streams = sum(tensor.in_features for tensor in layer.extra_tensors if tensor.name == "hyper_connection")
    if streams:  # read to mix what goes in, read and written to add what comes out, at mixer and feed-forward
        kernels.append(("residual streams", 2 * 3 * streams, 4))
    kernels += mixer_elementwise(deployment, layer.mixer)
    if mlp is None:
        return kernels
    if isinstance(mlp, MoeMlp):
        kernels += expert_elementwise(deployment, mlp, hidden)
    name, width = "activation", mlp.intermediate_size
    if isinstance(mlp, MoeMlp):
        name, width = SHARED + name, mlp.shared_intermediate_size
    activated = width / deployment.tensor_parallel
    if activated:
        kernels.append((name, (3 if mlp.gated else 2) * activated, 1))
    return kernels


def expert_elementwise(deployment: Deployment, mlp: MoeMlp, hidden: int) -> list[tuple[str, float, int]]:
    """Elementwise kernels around routed experts that measured kernels do not include, as in ``layer_elementwise``. They
    choose experts from the router's logits, and add the shared experts' output."""
    launches = deployment.passes
    chosen = 0 if deployment.weight_dtypes["expert"] == "mxfp4" else launches.expert_choice
    summed = launches.shared_sum if mlp.shared_intermediate_size else 0
    read = mlp.num_experts + 2 * mlp.experts_per_token
    return [one for one in (("expert choice", read, chosen), ("shared sum", 3 * hidden, summed)) if one[2]]


def mixer_elementwise(deployment: Deployment, mixer: Mixer | None) -> list[tuple[str, float, int]]:
    """Elementwise passes of a token mixer on one chip, as ``layer_elementwise`` lists them."""
    tp = deployment.tensor_parallel
    if isinstance(mixer, ShortConvolution):
        return [("gates", 4 * mixer.channels / tp, 2)]
    if isinstance(mixer, Recurrent):
        ((shape, _),) = deployment.mixing(mixer)
        assert isinstance(shape, RecurrentShape)
        return [("gated norm", 3 * shape.value_heads * shape.value_dim, 1)]
    if isinstance(mixer, CompressedAttention):
        return [("rotary", 4 * (mixer.num_heads / tp + 1) * mixer.head_dim, 2)]
    elementwise = deployment.passes
    if isinstance(mixer, SelectiveAttention | SharedKvAttention):
        mixer, elementwise = (
            mixer.attention,
            ElementwiseKernels(),
        )  # their kernels were fitted on whole modules, beside these
    if not isinstance(mixer, Attention):
        return []
    rotated = (mixer.num_heads + mixer.num_kv_heads) * mixer.head_dim / tp
    cached = mixer.kv_elements_per_token / min(tp, mixer.num_kv_heads)
    normed, norms = rotated if mixer.qk_norm else 0.0, elementwise.qk_norm
    if mixer.kind == "mla":
        normed = cached + (mixer.q_lora_rank or 0)
        norms = elementwise.latent_norm if mixer.q_lora_rank else min(1, elementwise.latent_norm)
    kernels = [
        ("rotary", 2 * rotated, elementwise.rotary),
        ("query and key norms", 2 * normed, norms if normed else 0),
        ("KV write", 2 * cached, 0 if deployment.writes_cache(mixer) else elementwise.kv_write),
    ]
    return [one for one in kernels if one[2]]


def layer_parts(layer: Layer) -> int:
    """Number of parts of a layer: mixer and feed-forward, if present."""
    return (layer.mixer is not None) + (layer.feed_forward is not None)


def reduction_calls(deployment: Deployment, layer: Layer, tokens: IntArray) -> Iterator[Call]:
    """All-reduces of one layer: after attention, and after the parts of the MLP that no other group shares.

    A norm over whole queries and keys, which are split over chips, first reduces their sums of squares (MiniMax; vLLM's
    ``MiniMaxText01RMSNormTP``: one all-reduce of two 4-byte numbers a token).
    """
    mlp, groups = layer.feed_forward, deployment.attention_data_parallel
    if isinstance(layer.mixer, Attention) and layer.mixer.qk_norm == "vector":
        yield from collective("query and key norms all-reduce", deployment, "all_reduce", 8 * tokens)
    once = groups > 1 and isinstance(mlp, MoeMlp) and not mlp.shared_intermediate_size
    element = deployment.framework.reduced_bytes or deployment.activation_bytes
    message = tokens * deployment.architecture.hidden_size * element
    yield from collective("layer all-reduce", deployment, "all_reduce", message, layer_parts(layer) - once)


def expert_call(
    deployment: Deployment, mlp: MoeMlp, tokens: IntArray, query_len: Num = 1, dispatched: bool = False
) -> Call:
    """Routed experts of one layer on the slowest chip. ``tokens`` is the total of all attention groups; ``dispatched``
    if an all-to-all sends each chip only the tokens of its experts."""
    sizes = {
        "tokens": tokens,
        "num_experts": deployment.expert_slots(mlp.num_experts),
        "experts_per_token": mlp.experts_per_token,
        "hidden": mlp.expert_width(deployment.architecture.hidden_size),
        "intermediate": mlp.intermediate_size,
        "dtype": deployment.expert_kernels,
        "kernel": deployment.expert_kernel,
        "expert_parallel": deployment.expert_parallel,
        "tensor_parallel": deployment.expert_tensor_parallel,
        "gated": mlp.gated,
        "routing": deployment.expert_routing,
        "alike": alike_tokens(query_len),
        "dispatched": dispatched,
        "mean_work": True,
    }
    return Call("experts", "moe", sizes)


def shared_expert_calls(deployment: Deployment, mlp: MoeMlp, tokens: IntArray) -> Iterator[Call]:
    """Experts that attention groups share, with the exchange of tokens to and from them.

    If whole experts are spread over all chips of the group: an all-to-all each way. If each expert is split: an
    all-gather of all groups' tokens and a reduce-scatter of the results (vLLM's ``allgather_reducescatter`` and
    ``deepep_high_throughput`` all-to-all backends).

    Args:
        tokens: tokens of all attention groups together.
    """
    per_chip = deployment.expert_parallel == deployment.group_chips
    yield expert_call(deployment, mlp, tokens, dispatched=per_chip)
    link = {"link": deployment.link}
    if per_chip:
        there, back = exchange_bytes(deployment, mlp, tokens)
        world = {"world_size": deployment.expert_parallel}
        yield Call("expert dispatch", "collective", {"op": "all_to_all", "message_bytes": there} | world | link)
        yield Call("expert combine", "collective", {"op": "all_to_all", "message_bytes": back} | world | link)
    else:
        width = mlp.expert_width(deployment.architecture.hidden_size)
        message = {"message_bytes": tokens * width * ACTIVATION_BYTES}
        world = {"world_size": deployment.attention_data_parallel}
        if deployment.link is not None:
            link = {"link": deployment.link.between_groups(deployment.tensor_parallel)}
        yield Call("expert dispatch", "collective", {"op": "all_gather"} | message | world | link)
        yield Call("expert combine", "collective", {"op": "reduce_scatter"} | message | world | link)


def exchange_bytes(deployment: Deployment, mlp: MoeMlp, tokens: IntArray) -> tuple[FloatArray, FloatArray]:
    """Bytes that the busiest chip sends to the experts (its own part included), and bytes that return to it.

    Tokens are evenly spread over the chips. Each token goes once to every chip with any of its experts: to ``R (1 - (1
    - 1/R)^k)`` of ``R`` chips; the chip with the most popular experts determines the time.

    Source: DeepEP (github.com/deepseek-ai/DeepEP), normal kernels: one copy per destination rank.
    """
    chips = deployment.expert_parallel
    reached = chips * (1.0 - (1.0 - 1.0 / chips) ** mlp.experts_per_token)
    copies = tokens / deployment.group_chips * reached
    some = tokens > 0
    copies[some] *= slowest_rank_factor(
        ARRAY,
        read_routing(deployment.expert_routing),
        tokens[some] * 1.0,
        deployment.expert_slots(mlp.num_experts),
        mlp.experts_per_token,
        chips,
    )
    sent = copies * mlp.expert_width(deployment.architecture.hidden_size)
    narrow = deployment.weight_dtypes["expert"] in ("fp8", "fp8_block", "mxfp8")
    return sent * (FP8_DISPATCH_BYTES if narrow else ACTIVATION_BYTES), sent * ACTIVATION_BYTES


def head_calls(deployment: Deployment, rows: IntArray) -> Iterator[Call]:
    """Final norm, LM head and sampling by rows of logits, on the last stage."""
    if not deployment.last_stage:
        return
    architecture = deployment.architecture
    vocabulary = -(-architecture.vocab_size // deployment.tensor_parallel)
    dtype = deployment.weight_dtypes["embedding" if architecture.tie_word_embeddings else "lm_head"]
    yield Call("LM head", "gemm", {"m": rows, "n": vocabulary, "k": architecture.hidden_size, "dtype": dtype})
    norm = NORM_KERNELS * architecture.hidden_size * deployment.activation_bytes
    logits = LOGIT_KERNELS * architecture.vocab_size * LOGIT_BYTES
    yield Call("sampling", "elementwise", {"bytes_moved": rows * (norm + logits), "launches": 3 * np.minimum(rows, 1)})
    gathered = rows * architecture.vocab_size * deployment.activation_bytes
    yield from collective("logits all-gather", deployment, "all_gather", gathered)


class MixingKind(NamedTuple):
    """Layers with the same token-mixing kernels: one for prompts and one for decoding sequences."""

    shape: MixingShape
    window: int | None
    place: int
    """Index of the layers' attention window in the per-window fields of ``StepWork``."""
    layers: int
    kernels: KernelLibrary
    """Kernel library of the chip that runs the layers."""
    one_pass: bool = False
    """True if one kernel serves the prompt chunks and the single queries of a batch."""
    joined: bool = False
    """True if prompt chunks share the launch of decode attention in mixed batches."""

    @property
    def full_attention(self) -> AttentionShape | None:
        """Shape of softmax attention over every key; None for other layers."""
        return self.shape if self.window is None and isinstance(self.shape, AttentionShape) else None

    @property
    def prompts(self) -> MixingShape:
        return self.shape.of_prompts if isinstance(self.shape, AttentionShape) else self.shape


def mixing_kinds(deployment: Deployment, windows: tuple[int | None, ...]) -> list[MixingKind]:
    """Token-mixing kernels of a model's layers, by the chip that runs them."""
    return [
        MixingKind(
            shape,
            window,
            0 if isinstance(shape, RecurrentShape) else windows.index(window),
            layers,
            kernels,
            isinstance(shape, AttentionShape) and kernels.one_pass(shape),
            isinstance(shape, AttentionShape) and shape.of_prompts == shape and home.joins_attention,
        )
        for home in deployment.homes
        for kernels in (home.kernels,)
        for (shape, window), layers in home.mixing_layers.items()
    ]


def decode_calls(kind: MixingKind, seqs: Num, query_len: Num, keys: Num, tail_kv: Num = 0.0) -> Iterator[Call]:
    """Token-mixing calls of one layer for decoding sequences.

    Args:
        kind: kind of the layer.
        seqs, query_len, keys: number of sequences, queries per sequence, and total keys read.
        tail_kv: as in ``StepWork``.
    """
    shape = kind.shape
    sizes = {"shape": shape, "seqs": seqs, "q_len": query_len}
    if isinstance(shape, RecurrentShape):
        yield from _convolution_calls(shape, seqs, seqs * query_len, "update")
        if shape.value_heads:
            yield Call("recurrent update", "recurrent_decode", sizes)
        return
    sizes |= {"kv_tokens": keys}
    if not isinstance(shape, AttentionShape):
        op, name = _sparse(shape)
        yield Call(f"decode sparse {name}", f"{op}_decode", sizes, window=kind.window)
        return
    yield Call("decode attention", "attention_decode", sizes | {"tail_kv": tail_kv}, window=kind.window)


def prompt_calls(kind: MixingKind, seqs: Num, tokens: Num, pairs: Num, keys: Num, joined: Num = 0.0) -> Iterator[Call]:
    """Token-mixing calls of one layer for prompt chunks.

    Args:
        kind: kind of the layer.
        seqs, tokens: number of chunks and of their tokens.
        pairs, keys: (query, key) pairs within the layer's window, and keys read.
        joined: 1 if the chunks share the launch of decode attention, else 0.
    """
    sizes = {"shape": kind.prompts, "seqs": seqs, "q_tokens": tokens}
    if isinstance(kind.shape, RecurrentShape):
        yield from _convolution_calls(kind.shape, seqs, tokens, "scan")
        if kind.shape.value_heads:
            yield Call("recurrent scan", "recurrent_prefill", sizes)
        return
    sizes |= {"pairs": pairs, "kv_tokens": keys}
    if isinstance(kind.shape, AttentionShape):
        sizes |= {"joined": joined} if kind.joined else {}
        yield Call("prefill attention", "attention_prefill", sizes, window=kind.window)
    else:
        op, name = _sparse(kind.shape)
        yield Call(f"prefill sparse {name}", f"{op}_prefill", sizes, window=kind.window)


def mixed_calls(
    kind: MixingKind, seqs: Num, tokens: Num, pairs: Num, keys: Num, decoding: Num, decode_keys: Num, longest_kv: Num
) -> Iterator[Call]:
    """Attention of one layer over prompt chunks and single queries in one kernel. Sizes as in ``prompt_calls``, then
    the number of single-query sequences, their total keys, and the keys of the longest one."""
    sizes = {"shape": kind.shape, "seqs": seqs, "q_tokens": tokens, "pairs": pairs, "kv_tokens": keys}
    sizes |= {"decode_seqs": decoding, "decode_kv_tokens": decode_keys, "longest_kv": longest_kv}
    yield Call("mixed attention", "attention_mixed", sizes, window=kind.window)


MixingCalls = Callable[..., Iterator[Call]]
"""``decode_calls``, ``prompt_calls`` or ``mixed_calls``."""


def mixing_calls(kind: MixingKind, work: StepWork[Num]) -> Iterator[tuple[MixingCalls, tuple[Num, ...]]]:
    """Token-mixing calls of one layer and their sizes. One kernel for mixed batches if the library has such a kernel,
    else separate kernels for decoding sequences and prompt chunks; single steps list only kernels that run."""
    decoding, prefilling, many = work.decode_seqs, work.prefill_seqs, isinstance(work.decode_seqs, np.ndarray)
    chunks = (work.prefill_tokens, work.prefill_pairs[kind.place], work.prefill_kv_tokens[kind.place])
    keys = work.decode_kv_tokens[kind.place]
    longest_kv, tail_kv = (work.longest_kv, work.tail_kv) if kind.window is None else (0, 0)
    if kind.one_pass and many:
        mixed = (decoding > 0) & (prefilling > 0) & (work.query_len == 1)
        if mixed.any():
            yield mixed_calls, (np.where(mixed, prefilling, 0), *chunks, decoding, keys, longest_kv)
            decoding, prefilling = np.where(mixed, 0, decoding), np.where(mixed, 0, prefilling)
    elif kind.one_pass and decoding and prefilling and work.query_len == 1:
        yield mixed_calls, (prefilling, *chunks, decoding, keys, longest_kv)
        return
    if many or decoding:
        yield decode_calls, (decoding, work.query_len, keys, tail_kv)
    if many or prefilling:
        yield prompt_calls, (prefilling, *chunks, *([1.0 * (decoding > 0)] if kind.joined else []))


def seconds_of(calls: Callable[..., Iterator[Call]], kind: MixingKind) -> Callable[..., Num]:
    """Seconds of one layer's ``calls`` by their sizes, which are numbers, arrays or traced, and all > 0."""

    def seconds(*sizes: Num) -> Num:
        total: Num = 0.0
        for call in calls(kind, *sizes):
            arguments = {name: size for name, size in call.sizes.items() if name != "tail_kv"}
            total = total + getattr(kind.kernels, call.op)(**arguments).seconds
        return total

    return seconds


def _sparse(shape: MixingShape) -> tuple[str, str]:
    """Operation prefix and name of an index, or of attention over the entries that a query reads."""
    return ("index", "index") if isinstance(shape, IndexShape) else ("sparse", "attention")


def _convolution_calls(shape: RecurrentShape, seqs: Num, tokens: Num, phase: str) -> Iterator[Call]:
    """Short convolution before a recurrence."""
    if shape.conv_channels:
        sizes = convolution(shape, seqs, tokens, phase)
        yield Call(f"convolution ({phase})", "elementwise", sizes | {"launches": np.minimum(seqs, 1)})


@dataclass(frozen=True, slots=True)
class ByCount:
    """Table of numbers by a count, from 0."""

    values: NDArray[Any]

    def __call__(self, count: Num) -> Num:
        return self.values[count] if isinstance(count, np.ndarray) else self.values.item(count)


@dataclass(slots=True)
class CostTable:
    """Costs of work that depends on one count alone, priced in blocks on first request."""

    price: Callable[[IntArray], Costs]
    """Function that prices many counts."""
    most: int
    """Largest count of the table."""
    like: CostTable | None = None
    """Table of the same prices with a different largest count: common blocks are priced once."""
    costs: Costs = field(init=False)
    """One row per count, from 0; rows of blocks that were not requested are zero."""
    known: list[float | None] = field(init=False)
    """Device seconds by count; None if the block was not requested."""

    BLOCK: ClassVar[int] = 256
    """Rows of the first block; each further block doubles the length of the table."""

    def __post_init__(self) -> None:
        self.costs = Costs.zeros(self.most + 1)
        self.known = [None] * (self.most + 1)

    def seconds(self, count: int) -> float:
        """Device seconds at ``count``."""
        seconds: float = look_up(self, count)
        return seconds

    def __call__(self, count: int) -> float:
        row = self.known[count]
        if row is None:
            self._fill(self._block(int(count)))
            row = self.known[count]
            assert row is not None
        return row

    def rows(self, counts: IntArray) -> Costs:
        """Costs at many counts."""
        first, most = 0, int(counts.max(initial=0))
        while first <= most:
            block = self._block(first)
            if self.known[first] is None and bool(((counts >= first) & (counts <= block[-1])).any()):
                self._fill(block)
            first = int(block[-1]) + 1
        return self.costs.rows(counts)

    def _block(self, count: int) -> IntArray:
        first = 0 if count < self.BLOCK else self.BLOCK << (count // self.BLOCK).bit_length() - 1
        return np.arange(first, min(max(2 * first, self.BLOCK), self.most + 1), dtype=np.int64)

    def _fill(self, counts: IntArray) -> None:
        first, like = int(counts[0]), self.like
        # Only blocks that are alike as a whole: the last bit of a sum may depend on what is priced beside it.
        shared = like is not None and first <= like.most and len(like._block(first)) == len(counts)
        if like is not None and shared:
            if like.known[first] is None:
                like._fill(counts)
            rows = like.costs.rows(counts)
        else:
            rows = self.price(counts)
        self.costs.put(counts, rows)
        for count, seconds in zip(counts.tolist(), rows.device_s.tolist(), strict=True):
            self.known[count] = seconds
