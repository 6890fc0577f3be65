"""Prefix cache of a replica, and the stores behind it."""
