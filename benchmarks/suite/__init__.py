"""
Many runs.

A suite is a set of specs. Each is carried out once, however often it is interrupted. Importing this
package is quick: it needs no PyTorch.
"""

from benchmarks.suite.spec import Result, Spec, SuiteError, read_result, results

__all__ = ["Result", "Spec", "SuiteError", "read_result", "results"]
