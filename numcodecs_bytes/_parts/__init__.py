"""Parts of uncompressed chunks: plan their byte ranges, fetch them, apply the selection.

Imports `_core`. `ranges`, `selection`, `plan`, `assemble`, `open_file` and `chunk_files` do not
import zarr.
"""
