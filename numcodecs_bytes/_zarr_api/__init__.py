"""zarr as it is: versions, defaults, options, names, batches, pickling; its private names."""
