"""Make the README the first page, add files outside docs/, and docstrings to the reference."""  # noqa: INP001

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
LINKED = ("CHANGELOG.md", "CITATION.cff", "examples/*.py")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site; a page links to others by their path from docs/."""
    for path in (path for pattern in LINKED for path in sorted(ROOT.glob(pattern))):
        name = path.relative_to(ROOT).as_posix()
        file = File.generated(
            config, f"../{name}", abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED
        )
        is_page = path.suffix == ".md"
        file.dest_uri = f"{path.stem.lower()}/index.html" if is_page else name
        files.append(file)
    from_root = (ROOT / "README.md").read_text("utf-8")
    readme = re.sub(r"(?<=\]\()(?!\w+:|#)", "../", from_root).replace("](../docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with the docstrings of the objects whose signatures stand in its blocks."""
    for block in re.findall(r"^```py\n.*?^```\n", markdown, re.MULTILINE | re.DOTALL):
        names = re.findall(r"^numcodecs_bytes[\w.]+", block, re.MULTILINE)
        markdown = markdown.replace(block, "\n".join(f"::: {name}\n" for name in names))
    return markdown
