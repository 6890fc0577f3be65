"""A single run: build a scenario, simulate it, record it, compute metrics and check invariants."""
