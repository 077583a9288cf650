"""Experiments: they wire the world and the learners together and own every preset."""
