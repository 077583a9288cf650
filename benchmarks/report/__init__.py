"""One reader of runs, tables and figures of them, and one page that opens without a network."""


class PastRunError(ValueError):
    """Folders that cannot be summed up. The message says which and why."""
