"""Partial reads: plan the byte ranges of a selection, fetch them, take the selection."""
