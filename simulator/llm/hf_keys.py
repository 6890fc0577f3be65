"""Fields of a config that may be ignored: never one that could change a layer's shape."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from forerun.yaml_files import parse
from simulator.llm.fields import Fields, shown_value

_QUIET = re.compile(
    r"_(eps|epsilon|dtype|id|ids|dropout|pdrop|prob|loss|coef|coeff|theta|factor|scaling|std|beta|alpha|limit|limits|softcap|softcapping|path|version"
    r"|type|activation|func|fn|act|implementation|seed|label|labels|interleave|interleaved)$"
)
"""Endings of training, numerics and labels."""
_OTHER_MEDIA = re.compile(
    r"^(auto_map|time_step|torch_|quantization|transformers|visual|mm_|projector|media|spatial_|speech|vit_|img_|perceiver"
    r"|sub_configs)|(^|_)(vision|image|video|audio)(_|$)"
)
"""Encoders of other media, and the software that wrote the file."""


def refuse_unread(fields: Fields) -> None:
    """Refuse a field that may state a shape and that no reader requested.

    Raises:
        ForerunError: naming the first such field.
    """
    for key, value in fields.values.items():
        if key not in fields.seen and _may_shape(key) and not _says_nothing(value):
            fields.fail(
                key,
                f"({shown_value(value)}) may change the shape of layers, and Forerun does not know it for this model; "
                "remove it if it does not",
            )


@cache
def _words(table: str) -> frozenset[str]:
    """Words of a table of ``hf_keys.yaml``."""
    text = resources.files("simulator.llm").joinpath("hf_keys.yaml").read_text(encoding="utf-8")
    return frozenset(parse(text)[table].split())


def _may_shape(key: str) -> bool:
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower())
    if key in _words("shapeless_fields") or not _words("shape_words").intersection(words):
        return False
    return not (_QUIET.search(key) or _OTHER_MEDIA.search(key))


def _says_nothing(value: object) -> bool:
    """Whether a value is null, off, zero or empty, so that the feature of the field is not used."""
    return value is None or value is False or (not isinstance(value, bool) and value in (0, "", [], {}))
