"""The building blocks of the commands: stores and hierarchies, metadata, damaged chunks, reports.

Imports from all layers below: `_core`, `_engine` and the codecs.
"""
