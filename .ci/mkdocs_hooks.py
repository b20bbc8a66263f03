"""Make the README the first page, add files outside docs/, and docstrings to the reference."""  # noqa: INP001

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Link, Navigation, Section

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site; a page links to others by their path from docs/."""
    names = "CHANGELOG.md", ".github/SECURITY.md"
    pages = {name: (ROOT / name).read_text("utf-8") for name in names}
    for path in sorted(ROOT.glob("examples/*.py")):
        _, docstring, code = path.read_text("utf-8").split('"""', 2)
        content = f"# {path.name}\n\n{docstring}\n```python\n{code.lstrip()}```\n"
        pages[f"examples/{path.stem}.md"] = content
    options = {"inclusion": InclusionLevel.INCLUDED}
    for name, content in pages.items():
        page = File.generated(config, f"../{name}", content=content, **options)
        page_uri = name.removeprefix(".github/").removesuffix(".md").lower()
        page.dest_uri = f"{page_uri}/index.html"
        files.append(page)
    citation = ROOT / "CITATION.cff"
    file = File.generated(config, "../CITATION.cff", abs_src_path=str(citation), **options)
    file.dest_uri = citation.name
    files.append(file)
    from_root = (ROOT / "README.md").read_text("utf-8")
    readme = re.sub(r"(?<=\]\()(?!\w+:|#)", "../", from_root).replace("](../docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_nav(nav: Navigation, **_: object) -> Navigation:
    """Return the navigation; its links to headings are relative to the site."""
    for section in nav.items:
        for item in section.children if isinstance(section, Section) else ():
            if isinstance(item, Link):
                item.url = item.url.lstrip("/")
    return nav


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with docstrings in place of signatures, and links to the pages of examples."""
    for block in re.findall(r"^```py\n.*?^```\n", markdown, re.MULTILINE | re.DOTALL):
        names = re.findall(r"^numcodecs_bytes[\w.]+", block, re.MULTILINE)
        markdown = markdown.replace(block, "\n".join(f"::: {name}\n" for name in names))
    return re.sub(r"(?<=\]\()(\.\./examples/\w+)\.py(?=\))", r"\1.md", markdown)
