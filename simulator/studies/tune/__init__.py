"""Tuning of speculation: best number of draft tokens by batch and context."""
