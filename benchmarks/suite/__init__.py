"""
Many runs, on one machine or many: a suite is a set of specs, and each is carried out once, however often it is interrupted.

Nothing here knows what is run, or imports anything heavy: a call that finds nothing to do ends at once.
"""

from benchmarks.suite.spec import Result, Spec, SuiteError, read_result, results

__all__ = ["Result", "Spec", "SuiteError", "read_result", "results"]
