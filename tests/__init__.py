from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The folder of the repository."""
