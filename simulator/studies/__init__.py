"""Decisions from simulations: capacity plans, paired what-ifs, sweeps, and the analytic model that prunes them."""
