"""Simulated engine in wall-clock time behind an OpenAI endpoint, and comparison of a live engine with its twin."""
