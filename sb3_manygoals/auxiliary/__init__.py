"""Many goals as auxiliary tasks."""
