"""A file with given content, for readers to read."""

import json
from pathlib import Path


def written(folder: Path, content: object, name: str = "trace") -> Path:
    """``content`` as bytes, as text, or as the JSON of anything else."""
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path = folder / name
    path.write_bytes(content)
    return path
