"""Forerun's simulator: one scenario in, predicted requests, engine steps and summary out."""
