"""Whole attention modules of a trace, priced as the step lists them: projections, passes, index, attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, KernelTime, dtype_bytes, load_link
from hwprofiles.formulas import ARRAY
from hwprofiles.kernels.attention import attention_pairs, windowed_length
from hwprofiles.kernels.sparse import DENSE_TOKENS, IndexShape
from hwprofiles.parameters import SparseParameters
from simulator.llm import Architecture, load_architecture
from simulator.llm.layers import Mixer
from simulator.llm.mixers import BlockSparseAttention, CompressedAttention, IndexedAttention, SelectiveAttention
from simulator.timing.deployment import ACTIVATION_BYTES, Deployment, resolve_weight_dtypes
from simulator.timing.framework import load_framework
from simulator.timing.kernels import mixer_elementwise
from traces.kernels import KernelTable
from traces.kernels.table import IndexArray, equal_rows

PUBLISHED_FORMATS = ("-fp8", "-nvfp4")
"""Suffixes of repositories that hold the same model in another format."""


@cache
def module_layer(name: str) -> tuple[Architecture, Mixer]:
    """The model and the layer that a module's name means."""
    repository, _, kind = name.partition(" ")
    model = repository.rpartition("/")[2].lower()
    for ending in PUBLISHED_FORMATS:
        model = model.removesuffix(ending)
    architecture = load_architecture(model)
    mixers = [group.layer.mixer for group in architecture.layer_groups if group.layer.mixer is not None]
    for mixer in mixers:
        if kind in module_kinds(mixer):
            return architecture, mixer
    raise ForerunError(f"kernel trace: {model} has no attention of the kind '{kind}'")


def module_kinds(mixer: Mixer) -> tuple[str, ...]:
    """Names of a kind of layer in a kernel trace."""
    if isinstance(mixer, IndexedAttention):
        return ("dsa",) if mixer.own_indexer else ("dsa-shared",)
    if isinstance(mixer, CompressedAttention):
        return ("csa",) if mixer.top_k else ("hca",) if mixer.ratio else ("window",)
    return ("msa",) if isinstance(mixer, BlockSparseAttention) else ()


class Modules:
    """Modules of one phase and format, every size an array; kernels around the sparse ones are priced once.

    All ``rows`` of the trace have the same operation, KV format and library; ``library`` prices projections and passes.
    """

    def __init__(self, table: KernelTable, rows: IndexArray, library: KernelLibrary) -> None:
        self.phase = table.text("op", rows[0]).removeprefix("sparse_")
        try:
            self.framework = load_framework(library.library).on(library.chip)
        except ForerunError:  # a library that no engine is named after
            self.framework = load_framework("generic")
        self.tokens = table.size("batch")[rows] * table.size("q_len")[rows]
        self.around = np.zeros((len(KernelTime._fields), len(rows)))
        self.narrow = np.zeros(len(rows))
        """Number of matrix products with weights of 8 bits or fewer."""
        self.beyond_memory = np.zeros(len(rows), dtype=bool)
        """True for batches whose KV of all layers does not fit the chip, so that no engine ever runs them."""
        self._shapes: dict[str, dict[str, FloatArray]] = {"index": {}, "sparse": {}}
        self._sizes: dict[str, dict[str, FloatArray]] = {"index": {}, "sparse": {}}
        self._types: dict[str, Any] = {}
        columns = [table.word(word).codes[rows] for word in ("name", "dtype")]
        for part in equal_rows([*columns, table.size("num_heads")[rows]]):
            self._add(table, rows, part, library)

    def _add(self, table: KernelTable, rows: IndexArray, part: IndexArray, library: KernelLibrary) -> None:
        """Add the modules of rows with one model, weight format and number of heads."""
        chosen = rows[part]
        architecture, mixer = module_layer(table.text("name", chosen[0]))
        heads = int(table.size("num_heads")[chosen[0]])
        if heads > mixer.heads and isinstance(mixer, SelectiveAttention):  # measured with more than the model has
            mixer = replace(mixer, attention=replace(mixer.attention, num_heads=heads))
        if mixer.heads % heads:
            raise ForerunError(f"kernel trace: {heads} heads are no whole share of {architecture.name}'s {mixer.heads}")
        name = library.chip.links.scale_up
        dtype = table.text("dtype", chosen[0])  # of the module's own matrices, whatever a checkpoint keeps wider
        deployment = Deployment(
            architecture=architecture,
            chip=library.chip,
            kernels=library,
            link=load_link(name) if name else None,
            framework=self.framework,
            tensor_parallel=mixer.heads // heads,
            weight_dtypes=resolve_weight_dtypes(architecture, {"default": dtype, "attention": dtype}),
            kv_dtype=table.text("kv_dtype", chosen[0]),
        )
        tokens = self.tokens[part].astype(np.float64)
        gemms = deployment.mixer_gemms(mixer)
        self.narrow[part] = sum(dtype_bytes(gemm.dtype) < ACTIVATION_BYTES for gemm in gemms)
        different, place = np.unique(tokens, return_inverse=True)  # thousands of modules have a few hundred sizes
        for time in _surroundings(deployment, mixer, different):
            self.around[:, part] += np.array([np.broadcast_to(value, len(different)) for value in time])[:, place]
        batch, q_len, kv_len = (table.size(size)[chosen].astype(np.float64) for size in ("batch", "q_len", "kv_len"))
        held = batch * kv_len * deployment.kv_bytes_per_token
        self.beyond_memory[part] = held > library.chip.memory.capacity_bytes
        for shape, window in deployment.mixing(mixer):
            keys = batch * windowed_length(ARRAY, q_len, kv_len, window or 0)
            sizes = {"seqs": batch, "kv_tokens": keys}
            if self.phase == "decode":
                sizes["q_len"] = q_len
            else:
                sizes |= {"q_tokens": tokens, "pairs": batch * attention_pairs(ARRAY, q_len, kv_len, window or 0)}
            op = "index" if isinstance(shape, IndexShape) else "sparse"
            self._types[op] = shape
            numbers = {field: value for field, value in shape._asdict().items() if not isinstance(value, str)}
            for store, values in ((self._shapes[op], numbers), (self._sizes[op], sizes)):
                for field, value in values.items():
                    store.setdefault(field, np.zeros(len(self.tokens)))[part] = value

    def times(self, library: KernelLibrary) -> KernelTime:
        """Times of whole modules; outside graphs, at least the host's launch time."""
        total = self.around.copy()
        for op, shape in self._types.items():
            sized = {field: np.where(value > 0, value, 1e-9) for field, value in self._shapes[op].items()}
            sized |= {field: self._shapes[op][field] for field in ("local", "most", "dense_width") if field in sized}
            op_times = getattr(library, f"{op}_{self.phase}")(shape._replace(**sized), **self._sizes[op])
            total += np.array(op_times)
        parameters = library.parameters(f"sparse_{self.phase}", next(iter(self._types.values())).dtype)
        assert isinstance(parameters, SparseParameters)
        floor = np.where((self.phase == "prefill") | (self.tokens > self.framework.max_captured_tokens), 1.0, 0.0)
        further = np.where(self._shapes["index"].get("heads", 0.0 * self.narrow) > 0, parameters.index_host_s, 0.0)
        if parameters.dense_efficiency:
            sizes, most = self._sizes["sparse"], self._shapes["sparse"]["most"]
            short = sizes["kv_tokens"] <= np.minimum(sizes["seqs"] * most, DENSE_TOKENS)
            further = np.where(short, parameters.dense_host_s, further)
        launching = floor * (parameters.host_s + further + self.narrow * parameters.narrow_host_s)
        waiting = np.maximum(0.0, launching - total[0])
        total[0] += waiting
        total[1] += waiting
        return KernelTime(*total)


def _surroundings(deployment: Deployment, mixer: Mixer, tokens: FloatArray) -> Iterator[KernelTime]:
    for gemm in deployment.mixer_gemms(mixer):
        yield deployment.kernels.gemm(tokens, gemm.n, gemm.k, gemm.dtype)
    for _, elements, launches in mixer_elementwise(deployment, mixer):
        yield deployment.kernels.elementwise(tokens * elements * deployment.activation_bytes, launches)
