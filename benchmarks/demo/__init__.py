"""
A page on which a visitor sets goals for a trained agent.

It runs in a browser, without a network connection.
"""
