"""Rollouts of reinforcement learning: how long a training step waits for its responses, and when to draft."""
