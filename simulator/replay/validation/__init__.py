"""How far to trust the predictions: every comparison with its error, as one page and one file of errors."""

from simulator.replay.validation.attention import attention_errors
from simulator.replay.validation.errors import ErrorRow, errors_document, grown_errors, merged, read_errors
from simulator.replay.validation.kernels import measured_kernel_errors, shipped_kernel_errors
from simulator.replay.validation.page import trust_page
from simulator.replay.validation.requests import measured_request_errors
from simulator.replay.validation.speculative import speculation_errors

__all__ = [
    "ErrorRow",
    "attention_errors",
    "errors_document",
    "grown_errors",
    "measured_kernel_errors",
    "measured_request_errors",
    "merged",
    "read_errors",
    "shipped_kernel_errors",
    "speculation_errors",
    "trust_page",
]
