"""The learners of the studies, one module each."""
