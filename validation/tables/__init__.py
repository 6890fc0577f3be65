"""Readers of published tables that do not ship: imported, ``read_runs`` and ``read_kernels`` know them."""

from validation.tables import blis, blis_kernels, columns, llmservingsim, silicon, unified, vidur_flat

__all__ = ["blis", "blis_kernels", "columns", "llmservingsim", "silicon", "unified", "vidur_flat"]
