"""Studies: many simulated runs that answer one question."""
