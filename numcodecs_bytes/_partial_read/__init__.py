"""Partial reads: plan the byte ranges for a selection, fetch them, apply the selection."""
