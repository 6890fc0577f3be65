"""Sample traces shipped with the package, usable by name wherever a trace path is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from traces.errors import TraceError, did_you_mean


@dataclass(frozen=True, slots=True)
class Sample:
    """One shipped trace: name, file in ``traces/samples``, description, origin and licence."""

    name: str
    file: str
    title: str
    origin: str
    licence: str


_SAMPLES = {
    sample.name: sample
    for sample in (
        Sample(
            "azure-conv-2023",
            "azure-conv-2023.csv",
            "Azure LLM inference trace 2023, conversation, first 1,000 requests",
            "Microsoft Azure, github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv",
            "CC-BY-4.0",
        ),
        Sample(
            "mooncake-conversation",
            "mooncake-conversation.jsonl",
            "Mooncake conversation trace (FAST'25) with 512-token prefix blocks, first 300 requests",
            "github.com/kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl",
            "Apache-2.0",
        ),
        Sample(
            "agents",
            "agents.jsonl",
            "Six agents that plan, call helpers at once, wait for them and report (92 requests)",
            "made by tests/traces/agent_sample.py of the project, filler text",
            "Apache-2.0",
        ),
    )
}


def sample_names() -> list[str]:
    """Names of the shipped traces."""
    return list(_SAMPLES)


def sample(name: str) -> Sample:
    """Return the description of a shipped trace; an unknown name raises TraceError with the nearest name."""
    if name not in _SAMPLES:
        raise TraceError(f"no sample trace {name!r}{did_you_mean(name, _SAMPLES)}; known: {', '.join(_SAMPLES)}")
    return _SAMPLES[name]


def sample_path(name: str) -> Path:
    """Return the file of a shipped trace; an unknown name raises TraceError with the nearest name."""
    return Path(str(files("traces") / "samples" / sample(name).file))


def resolve(path: str | Path) -> Path:
    """Return a sample's file if ``path`` is a sample's name, else the path; raises TraceError if it does not exist.

    Write ``./azure-conv-2023`` for a file of your own that has a sample's name.
    """
    if isinstance(path, str) and path in _SAMPLES:
        return sample_path(path)
    resolved = Path(path)
    try:
        exists = resolved.exists()
    except (OSError, ValueError) as problem:
        raise TraceError(f"{str(path)[:80]!r}: not a usable path ({problem})") from None
    if not exists and str(resolved) in _SAMPLES:
        return sample_path(str(resolved))
    if not exists:
        hint = did_you_mean(str(path), _SAMPLES)
        raise TraceError(f"{path}: no such file, folder or sample{hint} (samples: {', '.join(_SAMPLES)})")
    return resolved
