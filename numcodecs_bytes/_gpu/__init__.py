"""All that knows a GPU: kernels, below; page-locked buffers, staging and the output, above."""
