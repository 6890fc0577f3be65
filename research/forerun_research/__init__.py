"""Studies of speculative decoding that build on Forerun's public names: controllers, shared drafters, RL rollouts."""
