"""Data types, the configuration, and the kernels: array -> stored bytes and back.

Imports neither zarr nor numcodecs, and nothing of this package but itself.
"""
