"""What a running process has: threads, traces, and the net for own bugs."""
