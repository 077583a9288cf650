"""Reads runs, makes tables and figures of them, and writes a page that needs no network."""


class PastRunError(ValueError):
    """Raised when folders cannot be summed up. The message says which and why."""
