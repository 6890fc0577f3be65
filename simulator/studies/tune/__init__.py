"""Speculation that pays, by batch and context."""
