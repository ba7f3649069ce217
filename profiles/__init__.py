"""Stores profiles, history and learned state in one SQLite file.

`records` needs only the standard library, and may be imported anywhere.
"""
