"""Number formats: bytes per element in memory, and the math formats that kernels may use for each."""

from collections.abc import Collection, Mapping
from typing import Any

from forerun.yaml_files import packaged
from hwprofiles.errors import ProfileError, did_you_mean

_FORMATS: dict[str, dict[str, Any]] = packaged("hwprofiles", "formats.yaml")
MLX_BITS, MLX_GROUPS = (2, 3, 4, 5, 6, 8), (64, 32, 128)
"""Bits and group sizes of MLX's affine formats, the default group first."""


def mlx_dtype(bits: int, group: int) -> str:
    """Name of an MLX format: ``mlx4`` has groups of 64, ``mlx4_g32`` of 32."""
    return f"mlx{bits}" + (f"_g{group}" if group != MLX_GROUPS[0] else "")


# One fp16 scale and one fp16 bias per group (mlx.core.quantize).
_FORMATS |= {
    mlx_dtype(bits, group): {"bytes": bits / 8 + 4 / group, "math": ["fp16", "bf16", "fp32"], "near": ["int4", "q4_0"]}
    for bits in MLX_BITS
    for group in MLX_GROUPS
}
GGUF_BLOCKS: dict[str, tuple[int, int]] = {name: tuple(f["block"]) for name, f in _FORMATS.items() if "block" in f}
"""GGUF formats: weights per block, and bytes per block with scales and minima."""
DTYPES: dict[str, float] = {
    name: GGUF_BLOCKS[name][1] / GGUF_BLOCKS[name][0] if name in GGUF_BLOCKS else form["bytes"]
    for name, form in _FORMATS.items()
}
"""Bytes per element, block scales included, by dtype name."""
_GGUF_MATH = ("int8", "fp16", "bf16", "fp32")
NEAREST = {name: tuple(form.get("near", ())) for name, form in _FORMATS.items()}
"""Substitute formats for a format without a fit, nearest first."""

VARIANT = "@"
"""Separates a format from a kernel name where a library has several kernels: ``fp8@name``."""


MIXED, SHARE = "+", ":"
"""Separators in the dtype of mixed-format matrices, largest share first: ``q4_k:0.75+q6_k:0.25``."""


def mixed_dtype(weights: Mapping[str, float]) -> str:
    """Dtype of matrices in several formats, from the weight count (or share) of each format.

    >>> mixed_dtype({"q4_k": 3, "q6_k": 1})
    'q4_k:0.75+q6_k:0.25'
    """
    total = sum(weights.values())
    parts = sorted(((count / total, name) for name, count in weights.items() if count), reverse=True)
    return parts[0][1] if len(parts) == 1 else MIXED.join(f"{name}{SHARE}{share:.4g}" for share, name in parts)


FORMAT_NAMES: dict[str, str] = {
    text: name for name, texts in packaged("hwprofiles", "published.yaml")["formats"].items() for text in texts
}
"""Catalogue format of each name in published results and in other tools."""


def dtype_name(text: str) -> str | None:
    """Catalogue name of a weight format; text in parentheses is ignored. None if the format is unknown."""
    return FORMAT_NAMES.get(text.partition("(")[0].strip().lower())


def _dtype_hint(dtype: str) -> str:
    """Suggestion for an unknown dtype: the dtype for another tool's format name, or a dtype of similar spelling."""
    word = dtype.lower()
    if word == "auto":
        return "; leave it out for the checkpoint's own"
    meant = "' or '".join(formats_meant(word))
    return f"; did you mean '{meant}'?" if meant else did_you_mean(dtype, DTYPES)


def formats_meant(text: str) -> list[str]:
    """Dtypes, as scenarios name them, that another tool's format name may denote."""
    word, hints = text.lower(), packaged("hwprofiles", "published.yaml")["format_hints"]
    return [*hints.get(word, [FORMAT_NAMES[word]] if word in FORMAT_NAMES else [])]


def format_of(stored: str) -> str:
    """Return the format part of ``format@kernel``; for a mixed dtype, the format with the largest share.

    >>> format_of("fp8@name")
    'fp8'
    """
    return stored.partition(VARIANT)[0].partition(MIXED)[0].partition(SHARE)[0]


def dtype_bytes(dtype: str) -> float:
    """Return the bytes per element of ``dtype``, block scales included; the mean for a mixed dtype.

    Raises:
        ProfileError: no such dtype.
    """
    size = DTYPES.get(dtype)
    if size is None and MIXED in dtype:
        return sum(share * DTYPES[name] for name, share in shares_of(dtype).items())
    if size is None:
        raise ProfileError(f"no dtype '{dtype}'{_dtype_hint(dtype)} (one of {', '.join(DTYPES)})")
    return size


def shares_of(dtype: str) -> dict[str, float]:
    """Share of the weights in each format, in (0, 1]; a plain dtype has one format.

    Raises:
        ProfileError: no such dtype, or a share outside (0, 1].
    """
    shares: dict[str, float] = {}
    for part in dtype.split(MIXED) if MIXED in dtype else (f"{dtype}{SHARE}1",):
        name, _, text = part.partition(SHARE)
        try:
            shares[name] = float(text)
        except ValueError:
            shares[name] = 0.0
        if name not in DTYPES or not 0.0 < shares[name] <= 1.0:
            raise ProfileError(f"dtype '{dtype}': '{part}' is no format with its share, as in q4_k:0.75+q6_k:0.25")
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def math_dtype(dtype: str, supported: Collection[str]) -> str:
    """Return the format in which a chip multiplies weights stored as ``dtype``, one of ``supported``.

    Raises:
        ProfileError: no such dtype, or the chip supports none of its math formats.
    """
    dtype_bytes(dtype)
    candidates: Collection[str] = _FORMATS[format_of(dtype)].get("math", _GGUF_MATH)
    for candidate in candidates:
        if candidate in supported:
            return candidate
    raise ProfileError(f"dtype '{dtype}' cannot be computed here; the chip has {', '.join(sorted(supported))}")
