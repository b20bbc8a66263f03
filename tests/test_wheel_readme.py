"""What a package index shows of the wheel: its README, without the files that it links to."""

import contextlib
import email
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

MISSING = "the group dev is not installed"
pytest.importorskip("comrak", reason=MISSING)  # readme_renderer warns without it
pytest.importorskip("hatch_fancy_pypi_readme", reason=MISSING)
build = pytest.importorskip("hatchling.build", reason=MISSING)
markdown = pytest.importorskip("readme_renderer.markdown", reason=MISSING)

ROOT = Path(__file__).parent.parent
BASE_LINE = re.compile(r'(?<=^replacement = ")[^"]*(?=" # the base URL)', re.MULTILINE)
[BASE_URL] = BASE_LINE.findall((ROOT / "pyproject.toml").read_text("utf-8"))
EXAMPLE_URL = "https://example.org/owner/name/blob/main/"

FORMS = """
# All forms

[inline](docs/a.md), [on two
lines](docs/b.md#part), [titled](docs/c.md "title"), [`code[0]`](docs/d.md), ([in
parentheses](LICENSE)), [named][name], [Name], [name][], [not named], [named elsewhere][url],
[elsewhere](https://example.org/e), [here](#all-forms), [mail](mailto:a@example.org), `.ci/run`,
x[0], [1, 2), a note[^1].

| [in a head](docs/f.md) | [![linked picture](docs/g.svg)](docs/g.md) |
|---|---|
| [in a cell](docs/h.md) | ![titled](docs/h.svg "title") ![elsewhere](https://example.org/h.svg) |

![named picture][picture]

```python
x[0]
```

[^1]: With a [link](docs/l.md).

[name]: docs/i.md
[picture]: docs/j.svg
[url]: https://example.org/k
"""


class Page(HTMLParser):
    """What PyPI makes of a README."""

    def __init__(self, text):
        super().__init__()
        self.links, self.pictures, self.anchors, self.text = [], [], set(), ""
        self.feed(markdown.render(text))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "img":
            self.pictures.append(attributes["src"])
        if "id" in attributes:
            self.anchors.add("#" + attributes["id"])

    def handle_data(self, data):
        self.text += data


def description(readme, base, folder):
    """Return the description in a wheel that is built with this README and this base URL."""
    (folder / "numcodecs_bytes").mkdir()
    for file in ("LICENSE", "numcodecs_bytes/__init__.py"):
        shutil.copy(ROOT / file, folder / file)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (folder / "pyproject.toml").write_text(BASE_LINE.sub(base, project), "utf-8")
    (folder / "README.md").write_text(readme, "utf-8")
    with contextlib.chdir(folder):
        metadata = folder / build.prepare_metadata_for_build_wheel(".") / "METADATA"
    message = email.message_from_bytes(metadata.read_bytes())
    assert message["Description-Content-Type"] == "text/markdown"
    return message.get_payload(decode=True).decode()


def is_relative(link):
    return not urlsplit(link).scheme and not link.startswith("#")


@pytest.mark.parametrize("base", [BASE_URL, "", EXAMPLE_URL], ids=["as it is", "empty", "example"])
@pytest.mark.parametrize(
    "readme", [(ROOT / "README.md").read_text("utf-8"), FORMS], ids=["README", "all forms"]
)
def test_links_on_a_package_index(readme, base, tmp_path):
    """Links in the README are relative, and lead nowhere on an index; its text stays as it is."""
    before = Page(readme)
    after = Page(description(readme, base, tmp_path))
    assert any(map(is_relative, before.links))
    assert any(map(is_relative, before.pictures))

    assert not [link for link in after.links + after.pictures if is_relative(link)]
    assert {link for link in after.links if link.startswith("#")} <= after.anchors
    kept = [link for link in before.links if base or not is_relative(link)]
    assert after.links == [base * is_relative(link) + link for link in kept]
    kept = [link for link in before.pictures if base or not is_relative(link)]
    assert after.pictures == [
        f"{base}{link}?raw=true" if is_relative(link) else link for link in kept
    ]
    assert after.text.split() == before.text.split()
