"""Where a chunk is, and how it is asked for: stores, archives, references, files, byte ranges."""
