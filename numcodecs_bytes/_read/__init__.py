"""Reads what is selected of chunks into the output of a batch."""
