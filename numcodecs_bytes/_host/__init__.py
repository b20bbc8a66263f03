"""zarr and Python as they are: versions, defaults, options, names, counts, threads, pickling."""
