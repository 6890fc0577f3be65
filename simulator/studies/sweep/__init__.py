"""Sweeps: every combination of values, resumable, on processes or a cluster."""
