"""Choose the parameter set that predicts a kernel, and its evidence level."""

import math
from collections.abc import Iterable, Mapping

from forerun.yaml_files import packaged
from hwprofiles.catalogue import LOCAL_LIBRARY, load_chip, load_defaults, load_local_defaults
from hwprofiles.dtypes import NEAREST, VARIANT, dtype_bytes, format_of
from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.formulas import WINDOWED, Num
from hwprofiles.parameters import FAMILIES, FamilyParameters, GemmParameters
from hwprofiles.records import Fit
from hwprofiles.schema import Chip

_SAME = {"fp16": "bf16", "bf16": "fp16", "mxfp8": "fp8"}
"""Formats that share one fit."""
BASES = ("calibrated", "extrapolated", "datasheet")
"""Evidence levels of a kernel time, strongest first.

calibrated: fitted on kernels of this format measured on this chip, and the shape lies inside the fitted ranges.
extrapolated: fitted on this chip, for another shape or format. datasheet: no measurement on this chip."""
CALIBRATED, EXTRAPOLATED, DATASHEET = range(len(BASES))
_EVIDENCE = packaged("hwprofiles", "evidence.yaml")
UNFITTED_INTERVALS: dict[str, tuple[float, float]] = {name: tuple(ends) for name, ends in _EVIDENCE["unfitted"].items()}
"""90 % interval of a kernel without a fit on its chip, as factors on its time, by kernel family."""
UNKNOWN_INTERVAL = (0.5, 2.0)
"""Assumed 90 % interval, as factors on the time, of a family without an entry in ``UNFITTED_INTERVALS``."""


def unfitted_interval(family: str) -> tuple[float, float]:
    """90 % interval of a kernel without a fit on its chip, as factors on its time."""
    return UNFITTED_INTERVALS.get(family, UNKNOWN_INTERVAL)


def weakest(bases: Iterable[str]) -> str:
    """Weakest of several evidence levels."""
    return max(bases, key=BASES.index)


def inside_ranges(ranges: Mapping[str, tuple[float, float]], sizes: Mapping[str, Num]) -> Num:
    """True where every size, a number or an array, lies in its fitted range.

    Skips sizes that only one of the two tables contains."""
    inside: Num = True
    for name in ranges.keys() & sizes.keys():
        low, high = ranges[name]
        inside = inside & (sizes[name] >= low) & (sizes[name] <= high)
    return inside


_RULES = ("recurrent_prefill", "recurrent_decode", "sparse_prefill", "sparse_decode")
"""Families in which a kernel name denotes another layer rule; sets without such a name only approximate it."""
PORTABLE = "portable"
"""Library of kernels that use neither asynchronous copies nor thread block clusters, even on chips that have them."""


def as_older_kernels_see(chip: Chip) -> Chip:
    """Copy of the chip without asynchronous copies and without clusters that share operand reads."""
    compute = chip.compute.model_copy(update={"asynchronous": False})
    return chip.model_copy(update={"compute": compute, "on_chip": chip.on_chip.model_copy(update={"multicast": 1.0})})


def core_shares(chip: Chip) -> tuple[float, float, float, tuple[float, float]]:
    """Bandwidth of one core relative to an equal share, if fits come from another chip (``like``).

    The bandwidth of one core is its bytes in flight over the latency (on chip: a number of cycles), a property of the
    core. So a core of this chip gets no less bandwidth than a core of the chip that the fits come from.

    Returns:
        Factor for memory (>= 1), factor for on-chip memory (>= 1), the fewest cores of the ``like`` chips (inf if
        no fit comes from another chip), and exponentials per clock cycle of this chip and of the last ``like`` chip.

    Source: Little's law; V. Volkov, "Understanding Latency Hiding on GPUs" (2016), chapter 4.
    """
    cores = float(chip.compute.usable_cores)
    memory, store, fewest, model = 1.0, 1.0, math.inf, chip
    while model.like is not None and not model.kernels:
        model = load_chip(model.like)
        fitted_cores, clock = float(model.compute.usable_cores), 1.0
        if chip.compute.clock_hz is not None and model.compute.clock_hz is not None:
            clock = chip.compute.clock_hz / model.compute.clock_hz
        spread = cores / fitted_cores
        memory = max(memory, spread * (model.memory.bandwidth_bytes_per_s / chip.memory.bandwidth_bytes_per_s))
        faster = model.on_chip.bandwidth_bytes_per_s / chip.on_chip.bandwidth_bytes_per_s
        store = max(store, spread * clock * faster)
        fewest = min(fewest, fitted_cores)
    return memory, store, fewest, (chip.compute.exponentials_per_clock, model.compute.exponentials_per_clock)


def exact_names(family: str, named: str) -> tuple[str, ...]:
    """Names of the parameter sets that match a format or one of its kernels (``format@kernel``) exactly, best first.

    First the set of the kernel; for attention (``format@head size@name``) then the library's default kernel of that
    head size, with and then without the window; then the set of the format.
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

    Order: the chip's fit for ``library``, its ``generic`` fit, the fit of the chip named by ``like`` (followed as a
    chain), the defaults of its class. Within each, the set of the dtype comes before that of the nearest dtype. If the
    dtype names a kernel (``fp8@name``), the set of that kernel comes first. A layer with its own rule (``bf16@kda``) is
    calibrated only by sets of that rule; a set of that rule in another format has priority over sets of other rules.

    Returns:
        The parameter set and its evidence level: ``"calibrated"``, ``"extrapolated"`` or ``"datasheet"``.

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
    near: tuple[str, ...] = (*NEAREST.get(dtype, ()), "bf16", "fp8", "fp16", "fp32")
    if named != dtype and family in _RULES:
        near = (*(named.replace(dtype, other, 1) for other in near), dtype, *near)
    local = load_local_defaults(chip, library).get(family) if library.startswith(LOCAL_LIBRARY) else None
    if local is not None and _first(chip, (library,), family, (*exact, *near)) is None:
        name = next(name for name in (*exact, *near, *local) if name in local)
        return local[name].at_clock(chip.compute.clock_hz), "datasheet"
    for names, basis in ((exact, "calibrated"), (near, "extrapolated")):
        parameters = _first(chip, libraries, family, names)
        if parameters is not None:
            parameters = _widening(parameters, chip, chip, libraries, dtype) if names is near else parameters
            return parameters, basis if parameters.source.kind in ("fitted", "measured") else "datasheet"
    model = chip
    while model.like is not None:
        model = load_chip(model.like)
        parameters = _first(model, libraries, family, exact)
        other = _first(model, libraries, family, near)
        if parameters is None and other is not None:
            parameters = _widening(other, chip, model, libraries, dtype)
        if parameters is not None:
            fit = _carried_fit(family, parameters.fit)
            parameters = parameters.model_copy(update={"reference_clock_hz": model.compute.clock_hz, "fit": fit})
            parameters = parameters.carried(model.compute.asynchronous, chip.compute.asynchronous)
            return parameters.at_clock(chip.compute.clock_hz), "datasheet"
    defaults = load_defaults(chip.kind)[family]
    name = next(name for name in (*exact, *near, *defaults) if name in defaults)
    return defaults[name].at_clock(chip.compute.clock_hz), "datasheet"


SYNCHRONOUS_FLOPS = 2540.0
"""Operations per core and cycle of synchronous matrix instructions on 16-bit floats, since Hopper."""


def _carried_fit(family: str, fit: Fit | None) -> Fit:
    low, high = _EVIDENCE["carried"].get(family, unfitted_interval(family))
    own = (1.0, 1.0) if fit is None else fit.intervals.get("all", (1.0, 1.0))
    spread = {"all": (min(low, own[0]), max(high, own[1]))}
    return Fit(ranges={} if fit is None else fit.ranges, intervals=spread)


def _widening(
    parameters: FamilyParameters, chip: Chip, fitted: Chip, libraries: tuple[str, ...], dtype: str
) -> FamilyParameters:
    """Add dequantisation to a 16-bit GEMM set if ``chip`` stores narrower weights and multiplies in 16 bits."""
    if not isinstance(parameters, GemmParameters) or dtype == "any" or dtype_bytes(dtype) >= 2:
        return parameters
    plain = _first(fitted, libraries, "gemm", ("bf16", "fp16"))
    narrow = chip.math_dtype(dtype) in ("bf16", "fp16")
    return parameters.dequantising(_synchronous_share(chip)) if parameters is plain and narrow else parameters


def _synchronous_share(chip: Chip) -> float:
    """Share of the 16-bit peak that synchronous matrix instructions reach, which weight-only kernels use on chips newer
    than Hopper.

    Source: 62 % of Hopper's peak (arXiv:2402.13499), as much per core and cycle on its successors.
    """
    compute = chip.compute
    if not (compute.asynchronous and compute.multiplies_fp4 and compute.clock_hz):
        return 1.0
    return min(1.0, SYNCHRONOUS_FLOPS * compute.cores * compute.clock_hz / chip.peak_flops("bf16"))


def _first(chip: Chip, libraries: tuple[str, ...], family: str, dtypes: tuple[str, ...]) -> FamilyParameters | None:
    own = (chip.kernels.get(library, {}).get(family, {}) for library in libraries)
    return next((sets[dtype] for sets in own for dtype in dtypes if dtype in sets), None)
