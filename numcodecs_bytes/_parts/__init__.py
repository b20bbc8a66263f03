"""Parts of uncompressed chunks: plan their byte ranges, fetch them, apply the selection.

Imports `_core`. `ranges`, `selection`, `product`, `plan`, `assemble`, `open_file`, `locks` and
`write_file` do not import zarr.
"""
