"""What zarr calls: its pipelines, extended, and how the chunks of an array are stored."""
