"""Which speculation pays at which batch and context."""
