"""Capacity plans: the cheapest layout that holds an SLO."""
