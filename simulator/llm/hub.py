"""Configs of Hugging Face repositories: from the local cache, and from the network only on request."""

from __future__ import annotations

import os
import re
from pathlib import Path

from forerun.errors import ForerunError

_FILES = ("config.json", "hf_quant_config.json")


def hub_folder(name: str, download: bool = False) -> Path:
    """Folder in the Hugging Face cache with the ``config.json`` of ``hf:owner/name`` or ``hf:owner/name@revision``.

    Raises:
        ForerunError: no such name, not in the cache, or, with ``download``, not to be had from huggingface.co.
    """
    parts = re.fullmatch(r"hf:(\w[\w.-]*)/(\w[\w.-]*)(?:@(\w[\w.-]*))?", name)
    if parts is None:
        raise ForerunError(f"model: '{name[:120]}' must be hf:OWNER/NAME, or hf:OWNER/NAME@REVISION")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache, revision = Path(os.environ.get("HF_HUB_CACHE") or home / "hub"), parts[3] or "main"
    repository = cache / f"models--{parts[1]}--{parts[2]}"
    if download:
        _fetch(f"{parts[1]}/{parts[2]}", revision, repository)
    reference = repository / "refs" / revision
    folder = repository / "snapshots" / (reference.read_text("utf-8").strip() if reference.is_file() else revision)
    if not (folder / _FILES[0]).is_file():
        way_out = f"forerun models show {name} --download fetches it"
        raise ForerunError(f"model: {name} has no config.json in the Hugging Face cache ({cache}); {way_out}")
    return folder


def _fetch(repository: str, revision: str, folder: Path) -> None:
    from urllib.request import urlopen  # slow to import, and only here

    for file in _FILES:
        url = f"https://huggingface.co/{repository}/resolve/{revision}/{file}"
        try:
            with urlopen(url, timeout=20.0) as answer:
                text, commit = answer.read(4_000_000), str(answer.headers.get("X-Repo-Commit"))
        except OSError as error:  # URLError and HTTPError among them
            if file != _FILES[0] and getattr(error, "code", None) == 404:
                continue
            raise ForerunError(f"model: {url} cannot be fetched: {getattr(error, 'reason', error)}") from None
        if not re.fullmatch("[0-9a-f]{40}", commit):
            raise ForerunError(f"model: {url} names no commit; is something between here and huggingface.co?")
        for path, content in (
            (folder / "snapshots" / commit / file, text),
            (folder / "refs" / revision, commit.encode()),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
