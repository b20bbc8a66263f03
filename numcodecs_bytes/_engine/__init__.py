"""Reads and writes parts of uncompressed chunks.

Imports point downward only; ``constants`` holds every number.
"""
