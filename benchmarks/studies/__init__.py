"""
The studies. Each is data: which agents learn in which worlds for how long.

``study.py`` carries all of them out.
"""
