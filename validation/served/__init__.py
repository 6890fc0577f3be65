"""Served figures against measured runs: bands before measuring, and the process behind measured runs."""
