"""Writes chunks to local files: whole, or parts of them in place."""
