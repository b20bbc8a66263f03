"""The numbers of the engine, most of them with a measurement.

They are looked up when they are used, as ``constants.GAP_BYTES``, so that tests can change them;
but how many plans are kept is fixed when the modules that keep them are imported.
"""

# Gaps that are, on average, no longer than this are read with the runs around them: reading 8 KiB
# more takes as long as another read. A column with elements 8 KiB apart took 0.46 of the time in a
# single read if the file was in memory, and 0.4 to 0.6 if it was not; with 12 KiB, 1.7 times as
# long in memory. With a limit of 4 KiB, cold columns took up to 1.5 times as long as zarr alone.
GAP_BYTES = 1 << 13

# What is not read straight into the output passes through memory of this size, which stays in the
# CPU cache. A byte-swapped crop took 10.1 ms with 64 KiB, 6.3 with 256 KiB, 5.4 with 1 MiB and 5.0
# with 4 MiB.
BLOCK_BYTES = 1 << 20

# Close indices in an array are grouped by block if the hull of all of them is longer than this.
# Half of the elements of an 8 MiB chunk, unsorted, took 5.5 ms in a single read and 9.5 if grouped.
# A transposed chunk is read in parts of this size, to fill whole cache lines of the output: 2 MB
# took 0.6 of zarr's time, and 1.7 in blocks of BLOCK_BYTES; 120 MB took 0.7, and 1.4 in blocks.
# A transposed chunk of up to this size is written at once: 2 to 8 MB took 0.6 to 0.9 of the time in
# blocks.
GROUP_BYTES = 1 << 23

# How many plans of slices and integers are kept, of all arrays together: planning again for each
# chunk takes 1.2 to 1.35 times as long. Most take 1 KiB, and they take up to 4 MiB in all, because
# the offsets of more than KEPT_RUNS runs are not kept: to make them takes 2 % of the time to read.
KEPT_PLANS, KEPT_RUNS = 1 << 10, 1 << 8

# How many plans of shards are kept, and for up to how many inner chunks. They take 0.3 MiB in all,
# or 13 MiB if no two inner chunks have the same plan. Planning again takes 45 us for a shard of 4
# inner chunks, and 0.2 ms for one of 256, which takes 4 ms to read.
KEPT_SHARD_PLANS, KEPT_INNER_CHUNKS = 1 << 4, 1 << 8

# Of chunks of how many shapes an array keeps how they are stored: all, if its chunks are regular.
KEPT_SHAPES = 1 << 8

# Of how many elements on arrays that zarr makes of slices, to say where they belong, are slices
# again: that takes 15 us, and NumPy takes 8 ns longer to assign each element to arrays. 8 samples
# of 5 MB, unsorted, took 30 times as long as sorted ones with zarr 3.1.6.
MESH_FROM = 1 << 12

# Shorter runs are read as Python's bytes and joined: 0.6 us each instead of 1.0 into memory.
DIRECT_BYTES = 1 << 12

# Of LOOK_FROM and more runs of a chunk, up to NUM_LOOKED_AT are looked at first, which takes 4 us.
# If two looks take longer than WAIT_SECONDS, the system is asked to prefetch all runs: 1,000 cold
# points take 12 ms instead of 60; if nothing is cold, always asking takes 1.6 times as long as
# never. A read takes 1 us from memory, and 30 from a fast disk. Three more looks tell whether
# prefetching helps.
LOOK_FROM, NUM_LOOKED_AT, WAIT_SECONDS = 5, 5, 2e-5

# If files are slow, gaps are read over that take less time than another request: what is read at
# BYTES_PER_SECOND meanwhile, up to MAX_GAP_BYTES. The requests that are prefetched share it.
# One after the other, 1 ms each, parts of 64 MiB took 0.8 to 1.0 of zarr's time.
BYTES_PER_SECOND, MAX_GAP_BYTES, NUM_PREFETCHED = 2e9, 1 << 21, 16

# Of a longer range, Linux prefetches only the first part, which has this size by default.
PREFETCH_BYTES = 1 << 17

# If at least this much is selected per chunk, all cores together are faster than one thread. Below
# it, threads wait for each other: most of the time is spent in Python.
PARALLEL_BYTES = 1 << 19

# After how many chunks a batch looks again whether files are slow, or still are. If they are, as
# many threads read as zarr itself would use: cold chunks of 64 KiB take 4 ms instead of 18.
LOOK_EVERY, LOOK_EVERY_SLOW = 8, 32

# A look that takes longer than WAITED_SECONDS did not wait for another thread. If all else that a
# batch does, opening and writing files, takes that much longer in all than usual, and than
# SHORT_SECONDS each, more threads help: if each rename takes 10 or 50 ms, chunks of 1 MiB take 0.6
# of zarr's time to write, and 1.3 to 1.4 without this rule.
WAITED_SECONDS, SHORT_SECONDS = 1e-3, 1e-4

# The lowest rate of writes that do not wait. Memory and the page cache take 1 GB/s and more.
WRITTEN_PER_SECOND = 5e8

# The gap that takes as long as another request, if a chunk has one request in flight: a latency of
# 30 ms at 100 MB/s is worth 3 MB. With a quarter of this gap, reads took up to 20 times as long;
# with four times as much, 4.9 times. The requests in flight share it; otherwise, 3.2 times.
LATENCY_BYTES = 2_500_000

# A store that has answered within NEAR_SECONDS is near: there, requests do not wait, but take turns
# on the same cores. The gap that takes as long as another one is what the store sends meanwhile, at
# the rate of its answers of LONG_BYTES and more, until two are known at NEAR_BYTES_PER_SECOND. With
# the gap of a far store, parts of 16 MiB took Icechunk 1.7 times as long as all of it in a folder.
NEAR_SECONDS, NEAR_BYTES_PER_SECOND, LONG_BYTES = 1e-3, 4e9, 1 << 20

# Longer gaps are fetched, but not copied with the runs around them: a box through four chunks of
# 16 MiB, 1 ms away, took 0.57 to 0.91 of zarr's time, and 0.82 to 1.19 if they were copied.
COPIED_GAP_BYTES = 1 << 9

# Shorter runs of an answer are copied by one assignment: 8,192 runs of 4 bytes take 0.07 ms instead
# of 2.9. Longer ones are not: 2,048 runs of 4 KiB would take 1.8 ms instead of 1.1.
COPIED_TOGETHER_BYTES = 1 << 11

# Long ranges are requested in parts of at least this size, because a connection has a limited rate.
PART_BYTES = 1 << 21

# Chunks in one object that are at most this far apart are requested together. zarr alone fetches
# nothing between them.
BESIDE_BYTES = 1 << 14

# A chunk is left to zarr if a range would save no more than this: at 1 ms and 1 GB/s, parts of 400
# chunks of 64 KiB took 1.1 to 1.2 times as long as the chunks.
WORTH_BYTES = 1 << 16

# If a connection is lost after this time, the request is not repeated: it would be lost again.
PATIENCE_SECONDS = 1.0

# How long zarr reads a store after a strike. Its server may have been replaced by then.
STRUCK_SECONDS = 600.0

# The number to use if zarr's `async.concurrency` is None.
UNLIMITED = 1000

# Writes

# Whole chunks of at least this size are written by two threads per core. On tmpfs and two cores,
# two took 0.6 of the time of one with 128 KiB, 0.5 with 1 MiB, 0.8 to 1 with 64 KiB, and 1.2 with
# 4 KiB. Four took as long as two, and ten 1.05 to 1.4 times; but if each rename takes 1 ms, two
# took twice the time of four.
LARGE_WHOLE_BYTES = 1 << 17

# Runs are written one by one, unless there are more than this many for each hull over gaps of up to
# GAP_BYTES: then the hulls are rewritten. With a gap of 8 KiB, a run takes 1.1 us in memory (tmpfs)
# and 5.5 on ext4, the bytes around it 1.5 and 0.8. Fewer runs are not worth the exclusive lock.
REWRITE_FROM = 8

# Values that may be mapped from a file are copied, up to this size, before parts of chunks are
# written in place: that takes 20 ms. If they are larger, zarr writes those chunks.
MAPPED_COPY_BYTES = 1 << 26

# A write that waits for a lock tries again after one sixteenth of the time it has waited, within
# these limits. A try takes 0.2 ms. With a quarter of the time, some of eight writers of strides got
# no lock for a second.
NUM_WAITS, FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 16, 2e-4, 0.1

# How long a write waits before a log message says what it waits for, and how long it waits while
# the program ends.
LONG_SECONDS, EXIT_SECONDS = 5.0, 1.0

# How often a file that is replaced or deleted meanwhile is reopened.
MAX_TRIES = 1000
