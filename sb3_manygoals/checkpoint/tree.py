"""Plain trees."""


class CheckpointError(RuntimeError):
    """A state that cannot be saved or restored. The message says which, and why."""
