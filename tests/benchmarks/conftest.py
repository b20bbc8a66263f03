"""Keep `--doctest-modules` from importing the scripts here, which need more than the tests do."""

from pathlib import Path

collect_ignore = [path.name for path in Path(__file__).parent.glob("*.py")]
