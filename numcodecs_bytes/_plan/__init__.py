"""Which bytes of a chunk are read or written: numbers only.

No file, no store, no import of zarr.
"""
