"""Paired what-ifs: variants on common random numbers."""
