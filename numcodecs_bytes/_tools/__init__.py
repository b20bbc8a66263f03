"""The building blocks of the commands: stores and hierarchies, metadata, damaged chunks, reports.

Imports from all layers below, and holds `dask_chunks`.
"""
