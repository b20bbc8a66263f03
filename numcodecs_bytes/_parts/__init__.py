"""Parts of uncompressed chunks: plan their byte ranges, fetch them, apply the selection.

Imports `_core`. `ranges`, `plan`, `assemble` and `open_file` do not import zarr.
"""
