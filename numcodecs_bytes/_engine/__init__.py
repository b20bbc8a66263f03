"""Reads and writes parts of uncompressed chunks.

``docs/contributing.md`` lists the modules; ``constants`` holds the tuning numbers.
"""
