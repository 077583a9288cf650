"""Experiments: they wire worlds and learners together, and measure."""
