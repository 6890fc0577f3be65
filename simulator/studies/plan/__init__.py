"""Capacity plans: the cheapest layout that meets an SLO."""
