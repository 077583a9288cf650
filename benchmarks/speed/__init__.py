"""
How fast updates, the world and training are.

Contenders are measured in turn, beside what a user would run instead.
"""
