"""Which bytes of a chunk are read or written. No file, no store, no import of zarr."""
