"""The numbers that several modules share, with their measurements.

They are looked up when they are used, as ``constants.GAP_BYTES``, so that tests can change them. To
measure one again, change it here, and time a selection of an array of that size:

    python -m timeit -s "import zarr; array = zarr.open_array('FOLDER')" "array[:, 5]"
"""

# Gaps that are, on average, no longer than this are read with the runs around them: reading 8 KiB
# more takes as long as another read. A column with elements 8 KiB apart took 0.46 of the time in a
# single read if the file was in memory, and 0.4 to 0.6 if it was not; with 12 KiB, 1.7 times as
# long in memory. With a limit of 4 KiB, cold columns took up to 1.5 times as long as zarr alone.
GAP_BYTES = 1 << 13

# What is not read straight into the output passes through a buffer of this size, which stays in the
# CPU cache. A byte-swapped crop took 10.1 ms with 64 KiB, 6.3 with 256 KiB, 5.4 with 1 MiB and 5.0
# with 4 MiB. On two threads, each block costs 50 us more: 16 chunks of 2 MiB, rows of 4 KiB, took
# 9.2 ms with 1 MiB and 7.3 with 2 MiB (zarr's fused pipeline 7.6), swapped 11.0 and 8.7.
BLOCK_BYTES = 1 << 21

# What each of many short runs counts for at least: Python's objects for a run take about 90 bytes.
# Every second of 8 Mi int8, without gaps, took 296 MiB, and takes 5.
RUN_OVERHEAD_BYTES = 1 << 7

# What takes more memory than BLOCK_BYTES if that is faster, but no more than this:
# - Close indices in an array: a hull of up to this size is read at once, a longer one block by
#   block. Half of the elements of an 8 MiB chunk, unsorted, took 5.5 ms at once and 9.5 in blocks.
# - A transposed chunk that is read: so whole cache lines of the output are filled. 2 MB took 0.6 of
#   zarr's time, and 1.7 in blocks of BLOCK_BYTES; 120 MB took 0.7 and 1.4.
# - A transposed chunk that is written: 2 to 8 MB took 0.6 to 0.9 of the time in blocks.
GROUP_BYTES = 1 << 23

# What takes longer did most likely not wait for another thread: to open a file, or to read a byte.
CERTAIN_WAIT_SECONDS = 1e-3

# How many positions of a file are probed.
NUM_PROBES = 5

# How much Linux prefetches of a range, by default: a longer one only in part.
PREFETCH_BYTES = 1 << 17
