"""Reads runs, makes tables and figures of them, and writes one page that opens without a network."""


class PastRunError(ValueError):
    """Raised when folders cannot be summed up. The message says which and why."""
