"""All that knows a GPU: kernels, below; page-locked buffers, staging, output and values, above."""
