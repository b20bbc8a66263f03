"""Print the oldest packages that pyproject.toml allows users to install, as pip requires them."""  # noqa: INP001

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
extras = {"": project["dependencies"], **project["optional-dependencies"]}
required = {r.replace(">=", "==") for extra in extras if extra != "examples" for r in extras[extra]}
print(*sorted(required), sep="\n")  # noqa: T201
