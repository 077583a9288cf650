from tests.sb3_manygoals.checkpoint.conftest import no_sync

__all__ = ["no_sync"]
