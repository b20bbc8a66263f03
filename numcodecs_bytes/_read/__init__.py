"""Reads what is selected of chunks into the output of a batch.

And what writes share with reads: what zarr passes, and how slow files are.
"""
