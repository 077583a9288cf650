"""Many runs: a suite is a set of specs, each carried out once, however often it is interrupted. Nothing here is heavy."""

from benchmarks.suite.spec import Result, Spec, SuiteError, read_result, results

__all__ = ["Result", "Spec", "SuiteError", "read_result", "results"]
