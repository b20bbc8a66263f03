"""The entry points, which zarr loads in every program that uses zarr in this environment.

They must never fail: with an unsupported version of zarr, they warn once and leave zarr unchanged.
"""
