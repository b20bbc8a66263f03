"""What the commands are made of: stores and hierarchies, metadata, damaged chunks, reports.

Imports all layers below: `_core`, `_engine` and the codecs.
"""
