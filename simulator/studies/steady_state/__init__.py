"""The steady state of continuous batching in closed form, in milliseconds and without events."""
