"""What a chip and a link can do: limits with sources, kernel efficiencies, and the time one kernel takes."""

from hwprofiles.catalogue import chip_names, link_names, load_chip, load_link
from hwprofiles.dtypes import DTYPES, dtype_bytes, math_dtype
from hwprofiles.errors import ProfileError
from hwprofiles.library import KernelLibrary
from hwprofiles.predict import operation_columns, operation_names, predict
from hwprofiles.records import Source
from hwprofiles.results import AttentionShape, CollectiveTime, KernelTime
from hwprofiles.schema import Chip, Link

__all__ = [
    "DTYPES",
    "AttentionShape",
    "Chip",
    "CollectiveTime",
    "KernelLibrary",
    "KernelTime",
    "Link",
    "ProfileError",
    "Source",
    "chip_names",
    "dtype_bytes",
    "link_names",
    "load_chip",
    "load_link",
    "math_dtype",
    "operation_columns",
    "operation_names",
    "predict",
]
