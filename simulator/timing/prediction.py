"""Result of ``forerun predict``: the time of one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.errors import named_arguments
from forerun.result import Result, Summary
from forerun.tables import Table, duration, pairs, scaled
from hwprofiles import Chip, predict_kernel
from hwprofiles.library import CORRECTED

_PARTS = {"Launch": "launch_s", "Compute": "compute_s", "Memory": "memory_s", "Transfer": "transfer_s"}


class KernelPrediction(Result):
    """Predicted time of one kernel; its values can be read by key: ``prediction["seconds"]``."""

    kind = "predict"

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def __getitem__(self, key: str) -> Any:
        return self._document[key]

    @property
    def seconds(self) -> float:
        """Predicted time in seconds."""
        return self._document["seconds"]  # type: ignore[no-any-return]

    @property
    def interval_s(self) -> tuple[float, float]:
        """90 % interval of the time, in seconds."""
        low, high = self._document["interval"]
        return low, high

    @property
    def bound(self) -> str:
        """Resource that limits the kernel: ``compute``, ``memory``, ``interconnect`` or ``latency``."""
        return self._document["bound"]  # type: ignore[no-any-return]

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return self._document["flops"]  # type: ignore[no-any-return]

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return self._document["bytes"]  # type: ignore[no-any-return]

    @property
    def basis(self) -> str:
        """Evidence level: ``datasheet``, ``calibrated`` or ``extrapolated``."""
        return self._document["basis"]  # type: ignore[no-any-return]

    @property
    def document(self) -> dict[str, Any]:
        """Content of ``--json``: the result of ``hwprofiles.predict_kernel``, its rates, and the requested shape."""
        return self._document

    @property
    def summary(self) -> Summary:
        """All numbers of the prediction by name."""
        return Summary({key: value for key, value in self._document.items() if key != "shape"})

    @property
    def title(self) -> str:
        """Name of the kernel and its shape."""
        return " ".join([self["op"], *(f"{key}={value}" for key, value in self["shape"].items())])

    @property
    def facts(self) -> str:
        """Facts about the chip and library of the prediction."""
        return f"on {self['chip']}, {self['library']} kernels"

    @property
    def conclusion(self) -> str:
        """Sentence with the kernel's time, bound and evidence level."""
        return f"{duration(self['seconds'])}, bound by {self['bound']}, {self['basis']}"

    @property
    def remarks(self) -> tuple[str, ...]:
        return ()

    def tables(self) -> list[Table]:
        """Tables of the time and its parts, and of the work and its rate."""
        low, high = map(duration, self["interval"])
        rows = [("Time", duration(self["seconds"])), ("90 % interval", f"{low} to {high}")]
        rows += [("Bound", self["bound"]), ("Basis", self["basis"])]
        rows += [(label, duration(self[key])) for label, key in _PARTS.items() if self._document.get(key)]
        if self["flops"]:
            rows.append(("Work", f"{scaled(self['flops'], 'FLOP')}, {scaled(self['flops_per_s'], 'FLOP/s')}"))
            rows.append(("Traffic", f"{scaled(self['bytes'], 'B')}, {scaled(self['bytes_per_s'], 'B/s')}"))
        else:
            rows.append(("Message", scaled(self["bytes"], "B")))
        return [pairs("", rows, "kernel")]

    def records(self) -> list[dict[str, Any]]:
        """One row with shape and numbers, and with both ends of the interval."""
        low, high = self["interval"]
        plain = {key: value for key, value in self.summary.items() if key != "interval"}
        return [{**self["shape"], **plain, "low_s": low, "high_s": high}]


@named_arguments
def predict(
    chip: Chip | str,
    op: str,
    values: Mapping[str, Any] | None = None,
    library: str = "generic",
    corrected: bool = CORRECTED,
    **sizes: Any,
) -> KernelPrediction:
    """Predict one kernel: ``predict("h100-sxm", "gemm", m=4096, n=4096, k=4096, dtype="bf16")``.

    Args:
        chip: a profile, a catalogue name or a path.
        op: an operation of the canonical kernel trace, or ``elementwise``.
        values: values of the operation's columns, as numbers or as command-line text.
        sizes: further values, as keyword arguments.
        library: kernel library.
        corrected: whether to apply the profile's learned correction to the analytical time.

    Raises:
        ProfileError: unknown chip, operation or key, a missing key, or a value that is out of range or not supported by
            the chip.
    """
    values = {**(values or {}), **sizes}
    prediction = predict_kernel(chip, op, values, library, corrected)
    seconds = prediction["seconds"]
    rates = {f"{work}_per_s": prediction[work] / seconds if seconds else None for work in ("flops", "bytes")}
    return KernelPrediction({**prediction, **rates, "shape": dict(values)})
