"""Number formats: bytes per element in memory, and the math formats that kernels may use for each."""

from collections.abc import Collection, Mapping

from hwprofiles.errors import ProfileError, did_you_mean

DTYPES: dict[str, float] = {
    "fp32": 4.0,
    "tf32": 4.0,  # stored as fp32, multiplied as tf32
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,  # per-tensor or per-channel scales, negligible
    "fp8_block": 1.0 + 4 / 128**2,  # one fp32 scale per block of 128 x 128 (DeepSeek-V3)
    "mxfp8": 1.0 + 1 / 32,  # one E8M0 scale per 32 (OCP Microscaling formats 1.0)
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,  # GPTQ and AWQ: one fp16 scale and one 4-bit zero point per group of 128
    "fp4": 0.5 + 1 / 16,  # NVFP4: one fp8 scale per 16
    "mxfp4": 0.5 + 1 / 32,  # one E8M0 scale per 32 (OCP Microscaling formats 1.0)
    "int3": 3 / 8 + 2.375 / 128,  # GPTQ: one fp16 scale and one 3-bit zero point per group of 128
    "int2": 0.25 + 2.25 / 128,
    "bitnet": 0.25,  # BitNet b1.58: ternary weights in two bits (bitnet.cpp's i2_s), one scale per matrix
    "bfp8": 1.0 + 1 / 16,  # Tenstorrent block float: one shared exponent byte per 16
    "bfp4": 0.5 + 1 / 16,
}
"""Bytes per element, block scales included, by dtype name."""

GGUF_BLOCKS: dict[str, tuple[int, int]] = {
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q8_1": (32, 40),
    "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
    "q8_k": (256, 292), "iq1_s": (256, 50), "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74),
    "iq2_s": (256, 82), "iq3_xxs": (256, 98), "iq3_s": (256, 110), "iq4_nl": (32, 18), "iq4_xs": (256, 136),
    "tq1_0": (256, 54), "tq2_0": (256, 66), "q1_0": (128, 18),
}  # fmt: skip
"""GGUF formats: weights per block, and bytes per block with scales and minima (gguf package, ``GGML_QUANT_SIZES``)."""
DTYPES.update({name: size / weights for name, (weights, size) in GGUF_BLOCKS.items()})

_MATH: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "fp8_block": ("fp8", "bf16", "fp16", "fp32"),
    "mxfp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "bf16", "fp16", "fp32"),
    "int4": ("bf16", "fp16", "fp32"),
    "fp4": ("fp4", "bf16", "fp16", "fp32"),
    "mxfp4": ("bf16", "fp16", "fp32"),
    "bfp8": ("bfp8",),
    "bfp4": ("bfp4", "bfp8"),
}
"""Math formats a kernel may use for weights of a dtype, best first. int4 and mxfp4 are weight-only (AWQ, GPTQ,
gpt-oss)."""


_MATH.update(dict.fromkeys(GGUF_BLOCKS, ("int8", "fp16", "bf16", "fp32")))  # activations in 8 bits: ggml's mmq, vec_dot
_MATH.update(dict.fromkeys(("int3", "int2", "bitnet"), ("fp16", "bf16", "fp32")))

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
        raise ProfileError(f"no dtype '{dtype}'{did_you_mean(dtype, DTYPES)} (one of {', '.join(DTYPES)})")
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
    """Return the format in which a chip multiplies weights stored as ``dtype``.

    Args:
        dtype: format of the stored weights.
        supported: formats with a dense FLOP/s limit on the chip.

    Raises:
        ProfileError: no such dtype, or the chip supports none of its math formats.
    """
    dtype_bytes(dtype)
    for candidate in _MATH[format_of(dtype)]:
        if candidate in supported:
            return candidate
    raise ProfileError(f"dtype '{dtype}' cannot be computed here; the chip has {', '.join(sorted(supported))}")
