"""What `check` reports of an array, and how much of it it looks at."""

from dataclasses import dataclass, field

MAX_LISTED = 10
# Up to three times as many bytes are in memory: encoded, decoded, and as an array.
MAX_CHUNK_BYTES = 100_000_000


@dataclass
class ArrayReport:
    """The findings for an array.

    Attributes
    ----------
    path : str
        Path of the array in the store.
    data_type : str
        NumPy's name of the data type, or "struct of 3 fields", for example; empty if zarr can't
        open the array.
    partial_reads : str
        "yes", or "no: " and the reason.
    num_chunks : int
        Number of chunks, or shards of a sharded array, that were checked.
    problems : list of str
        What is damaged, read incorrectly, or rejected by other implementations; the first ten.
    num_problems : int
        Number of problems, including those that are not listed.
    notes : list of str
        What needs no action.
    """

    path: str
    data_type: str = ""
    partial_reads: str = "no: it can't be opened"
    num_chunks: int = 0
    problems: list[str] = field(default_factory=list)
    num_problems: int = 0
    notes: list[str] = field(default_factory=list)

    def add_problem(self, problem: str) -> None:
        """Count a problem, and list it if it is one of the first ten."""
        self.num_problems += 1
        if len(self.problems) < MAX_LISTED:
            self.problems.append(problem)


@dataclass(frozen=True)
class Limits:
    """How much of each array is checked.

    Attributes
    ----------
    max_chunks : int or None
        Largest number of chunks, or shards of a sharded array, to check; None checks all of them.
    max_chunk_bytes : int
        Chunks, and inner chunks of shards, whose decoded size is larger are not decoded.
    """

    max_chunks: int | None = None
    max_chunk_bytes: int = MAX_CHUNK_BYTES
