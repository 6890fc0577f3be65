"""Which parameter set predicts a kernel: the chip's own fit, else what comes nearest, and what it rests on."""

import math
from collections.abc import Iterable, Mapping

from hwprofiles.catalogue import LOCAL_LIBRARY, load_chip, load_defaults, load_local_defaults
from hwprofiles.dtypes import VARIANT, dtype_bytes, format_of
from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.formulas import WINDOWED, Num
from hwprofiles.parameters import FAMILIES, FamilyParameters, GemmParameters
from hwprofiles.records import Fit
from hwprofiles.schema import Chip

_SAME = {"fp16": "bf16", "bf16": "fp16", "mxfp8": "fp8"}
"""Formats whose fits are the same."""
_NEAREST = {
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8",),
    "int8": ("fp8",),
    "fp4": ("fp8",),
    "mxfp4": ("int4", "iq4_nl", "q4_0"),
    "int4": ("mxfp4", "q4_0"),
    "bfp4": ("bfp8",),
    "bfp8": ("bfp4",),
    "int3": ("int4", "q3_k"),
    "int2": ("int4", "q2_k"),
    "bitnet": ("int4", "tq2_0"),
    **dict.fromkeys(("q4_1", "q5_0", "q5_1", "q1_0"), ("q4_0", "int4")),
    **dict.fromkeys(("iq4_nl", "iq4_xs"), ("iq4_nl", "q4_0", "int4")),
    **dict.fromkeys(("q4_0", "q8_1", "q8_k"), ("int4", "q8_0")),
    **dict.fromkeys(("q4_k", "q5_k", "q6_k", "q8_0"), ("q4_0", "int4")),
    **dict.fromkeys(("q2_k", "q3_k", "tq1_0", "tq2_0"), ("q3_k", "q4_k", "int4")),
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s"), ("iq2_xxs", "iq3_xxs", "q4_k", "int4")),
    **dict.fromkeys(("iq3_xxs", "iq3_s"), ("iq3_xxs", "q4_k", "int4")),
}
"""Formats whose fits stand in, nearest first."""


BASES = ("calibrated", "extrapolated", "datasheet")
"""What a kernel's time rests on, from the firmest ground to the weakest: fitted on this chip's measured kernels of that
format, and the shape among those; fitted there, for another shape or format; nothing measured on this chip."""
CALIBRATED, EXTRAPOLATED, DATASHEET = range(len(BASES))
UNFITTED_INTERVALS = {
    "gemm": (0.78, 1.32),
    "moe": (0.75, 1.8),
    "attention_prefill": (0.65, 1.4),
    "attention_decode": (0.65, 1.6),
    "elementwise": (0.65, 1.7),
    "collective": (0.65, 1.7),
}
"""Ends of the 90 % interval of a kernel that was not fitted on its chip, as factors on its time.

Products, experts and attention: the 26 to 37 sets fitted on eight chips and four libraries over the defaults of their
chip's class, in the mean of up to 24 usual shapes each, 5th to 95th percentile rounded outwards; of the others there
are too few fits to compare: assumed, of the order of the errors that ``docs/validation`` reports for them."""
UNKNOWN_INTERVAL = (0.5, 2.0)
"""Of a family of which too few fits are known for that."""


def unfitted_interval(family: str) -> tuple[float, float]:
    """Ends of the 90 % interval of a kernel that was not fitted on its chip, as factors on its time."""
    return UNFITTED_INTERVALS.get(family, UNKNOWN_INTERVAL)


CARRIED_INTERVALS = {
    "gemm": (0.82, 1.28),
    "attention_prefill": (0.73, 1.58),
    "attention_decode": (0.64, 1.54),
    "moe": (0.58, 3.3),
}
"""The same of a kernel whose fit was carried from another chip (``like``).

Measured by leaving a chip out: H100, H200, A100 and B200 each under the fits of one of the others, six pairs, vLLM and
SGLang, 5th to 95th percentile of some 1,500 rows a family (experts: five pairs). Mean errors: 7 to 13 % on products,
5 to 25 % (B200: 31 %) on decode, 8 to 22 % (one pair 48 %) on prefill, 23 to 42 % on experts."""


def weakest(bases: Iterable[str]) -> str:
    """The label of the weakest ground among several."""
    return max(bases, key=BASES.index)


def inside_ranges(ranges: Mapping[str, tuple[float, float]], sizes: Mapping[str, Num]) -> Num:
    """Whether every size lies in its range; sizes of which one of the two says nothing are left out.

    Args:
        ranges: smallest and largest value of every size that a fit has seen.
        sizes: of one kernel, or arrays over many.
    """
    inside: Num = True
    for name in ranges.keys() & sizes.keys():
        low, high = ranges[name]
        inside = inside & (sizes[name] >= low) & (sizes[name] <= high)
    return inside


_RULES = ("recurrent_prefill", "recurrent_decode", "sparse_prefill", "sparse_decode")
"""Families whose named kernels compute something else than the plain ones, which then only stand in."""
PORTABLE = "portable"
"""Kernels written before the chip: they leave its asynchronous copies and thread block clusters unused."""


def as_older_kernels_see(chip: Chip) -> Chip:
    """The chip without asynchronous copies and without clusters that share operand reads."""
    compute = chip.compute.model_copy(update={"asynchronous": False})
    return chip.model_copy(update={"compute": compute, "on_chip": chip.on_chip.model_copy(update={"multicast": 1.0})})


def core_shares(chip: Chip) -> tuple[float, float, float]:
    """Equal shares that one core draws of the memory's and of the on-chip store's bandwidth, and the fewest cores of
    the chips that this one is like.

    One share, as kernels are fitted: a core's draw is a multiple of it. But what a core draws is what it keeps in
    flight over the latency (of the on-chip store: in so many cycles), and so belongs to the core: where fits stand in
    from a chip that this one is ``like``, its cores draw no less than theirs, however many share the memory.

    Source: Little's law; V. Volkov, "Understanding Latency Hiding on GPUs" (2016), chapter 4.
    """
    cores = float(chip.compute.usable_cores)
    memory, store, fewest, model = 1.0, 1.0, math.inf, chip
    while model.like is not None and not model.kernels:
        model = load_chip(model.like)
        theirs, clock = float(model.compute.usable_cores), 1.0
        if chip.compute.clock_hz is not None and model.compute.clock_hz is not None:
            clock = chip.compute.clock_hz / model.compute.clock_hz
        spread = cores / theirs
        memory = max(memory, spread * (model.memory.bandwidth_bytes_per_s / chip.memory.bandwidth_bytes_per_s))
        faster = model.on_chip.bandwidth_bytes_per_s / chip.on_chip.bandwidth_bytes_per_s
        store = max(store, spread * clock * faster)
        fewest = min(fewest, theirs)
    return memory, store, fewest


def exact_names(family: str, named: str) -> tuple[str, ...]:
    """Names of the sets that serve a format, or a kernel of it (``format@kernel``), without standing in for another.

    The kernel's own first; of attention (``format@head size@name``) then the one the library chooses itself for that
    head size, for windows the one without; then the format's.
    """
    dtype, rest = format_of(named), named.split(VARIANT)[1:]
    same = _SAME.get(dtype, dtype)
    kernels = {VARIANT.join((name, *rest)): None for name in (dtype, same)}
    if family.startswith("attention"):
        sizes = (rest[0], rest[0].removesuffix(WINDOWED)) if rest else ()
        kernels |= {VARIANT.join((name, size, *rest[1:])): None for name in (dtype, same) for size in sizes}
        kernels |= {f"{name}{VARIANT}{size}": None for name in (dtype, same) for size in sizes}
    own = tuple(kernels)
    return own if named != dtype and family in _RULES else (*own, dtype, same, "any")


def find_parameters(chip: Chip, library: str, family: str, dtype: str) -> tuple[FamilyParameters, str]:
    """Find the parameter set for a kernel family and the dtype of its stored operand.

    The fit of ``library``, else the chip's ``generic`` one, else that of the chip it is ``like`` (or which that one is
    like), else the defaults of its class; within each the set of the dtype, else the nearest one. Where the dtype names
    one kernel of several (``fp8@name``), the set of that kernel comes first; a layer of another rule (``bf16@kda``) is
    calibrated by that alone, and a set of the same rule in another format stands in before one of another rule.

    Returns:
        The set, and what it rests on: ``"calibrated"``, ``"extrapolated"`` or ``"datasheet"``.

    Raises:
        ProfileError: no such family or dtype.
    """
    if family not in FAMILIES:
        raise ProfileError(
            f"no kernel family '{family}'{did_you_mean(family, FAMILIES)} (one of {', '.join(FAMILIES)})"
        )
    named, dtype = dtype, format_of(dtype)
    if dtype != "any":
        dtype_bytes(dtype)
    libraries = tuple(dict.fromkeys((library, "generic")))
    exact = exact_names(family, named)
    near: tuple[str, ...] = (*_NEAREST.get(dtype, ()), "bf16", "fp8", "fp16", "fp32")
    if named != dtype and family in _RULES:
        near = (*(named.replace(dtype, other, 1) for other in near), dtype, *near)
    local = load_local_defaults(chip).get(family) if library == LOCAL_LIBRARY else None
    if local is not None and _first(chip, (library,), family, (*exact, *near)) is None:
        name = next(name for name in (*exact, *near, *local) if name in local)
        return local[name].at_clock(chip.compute.clock_hz), "datasheet"
    for names, basis in ((exact, "calibrated"), (near, "extrapolated")):
        found = _first(chip, libraries, family, names)
        if found is not None:
            found = _widening(found, chip, chip, libraries, dtype) if names is near else found
            return found, basis if found.source.kind in ("fitted", "measured") else "datasheet"
    model = chip
    while model.like is not None:
        model = load_chip(model.like)
        found = _first(model, libraries, family, exact)
        other = _first(model, libraries, family, near)
        if found is None and other is not None:
            found = _widening(other, chip, model, libraries, dtype)
        if found is not None:
            fit = _carried_fit(family, found.fit)
            found = found.model_copy(update={"reference_clock_hz": model.compute.clock_hz, "fit": fit})
            found = found.carried(model.compute.asynchronous, chip.compute.asynchronous)
            return found.at_clock(chip.compute.clock_hz), "datasheet"
    defaults = load_defaults(chip.kind)[family]
    name = next(name for name in (*exact, *near, *defaults) if name in defaults)
    return defaults[name].at_clock(chip.compute.clock_hz), "datasheet"


def _carried_fit(family: str, fit: Fit | None) -> Fit:
    """What a fit says on another chip: the shapes it has seen, and the spread of fits carried between chips."""
    low, high = CARRIED_INTERVALS.get(family, unfitted_interval(family))
    own = (1.0, 1.0) if fit is None else fit.intervals.get("all", (1.0, 1.0))
    spread = {"all": (min(low, own[0]), max(high, own[1]))}
    return Fit(ranges={} if fit is None else fit.ranges, intervals=spread)


def _widening(
    found: FamilyParameters, chip: Chip, fitted: Chip, libraries: tuple[str, ...], dtype: str
) -> FamilyParameters:
    """A 16-bit product's set of the chip that was ``fitted``, for weights that ``chip`` stores narrower and
    multiplies in 16 bits."""
    if not isinstance(found, GemmParameters) or dtype == "any" or dtype_bytes(dtype) >= 2:
        return found
    plain = _first(fitted, libraries, "gemm", ("bf16", "fp16"))
    narrow = chip.math_dtype(dtype) in ("bf16", "fp16")
    return found.dequantising() if found is plain and narrow else found


def _first(chip: Chip, libraries: tuple[str, ...], family: str, dtypes: tuple[str, ...]) -> FamilyParameters | None:
    """The first parameter set a chip has, by library and then by dtype."""
    for library in libraries:
        sets = chip.kernels.get(library, {}).get(family, {})
        for dtype in dtypes:
            if dtype in sets:
                return sets[dtype]
    return None
