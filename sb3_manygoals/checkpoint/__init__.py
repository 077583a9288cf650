"""The state of a training run, exactly, to be saved and restored."""
