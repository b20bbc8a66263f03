"""The code of the README and of docs/, and the examples, run and show what they say."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from helpers import run_python

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
# 50 s, mostly of processes that start.
LONG = ("docs/write-in-place.md", "write_in_place.py", "xarray_regions.py")


def parameter(value, file, name):
    return pytest.param(value, id=name, marks=[pytest.mark.long] if file in LONG else [])


BLOCKS = [
    parameter(block, name, f"{name}-{number}")
    for name, text in PAGES.items()
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    )
]
NEEDS = {
    "dask_cluster.py": ("dask", "distributed"),
    "fits_table.py": ("astropy", "fsspec"),
    "icechunk_virtual.py": ("icechunk", "obstore", "scipy", "virtualizarr"),
    "kerchunk_netcdf3.py": ("aiohttp", "dask", "kerchunk", "scipy", "xarray"),
    "object_store.py": ("obstore",),
    "partial_read.py": ("virtualizarr", "kerchunk", "obstore"),
    "xarray_lazy.py": ("xarray",),
    "xarray_regions.py": ("dask", "distributed", "xarray"),
}
EXAMPLES = [
    parameter(path, path.name, path.name) for path in sorted((ROOT / "examples").glob("*.py"))
]


def test_there_is_code():
    assert PAGES["README.md"].count("\n```python\n") >= 2
    assert len(BLOCKS) == sum(text.count("\n```python\n") for text in PAGES.values())
    assert EXAMPLES


@pytest.mark.parametrize("block", BLOCKS)
def test_code_of_a_page(block, tmp_path, request):
    """In a fresh process and an empty folder, and without a warning."""
    skip_without(*sorted(imported_by(block)))
    environment = request.getfixturevalue("s3") if "S3Store" in block else {}
    script, folder = tmp_path / "block.py", tmp_path / "empty"
    script.write_text(block, "utf-8")
    folder.mkdir()
    run_python("-W", "error", script, options={"cwd": folder}, **environment)


def imported_by(block):
    """Return the packages that a block imports."""
    nodes = list(ast.walk(ast.parse(block)))
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def skip_without(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install '.[examples]'")


@pytest.fixture
def s3():
    """Yield the environment that leads S3 to a server with the bucket that the pages name."""
    moto_server = pytest.importorskip("moto.server", reason="the group servers is not installed")
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("s3fs", reason="the extra stores is not installed")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="my-bucket")
    environment = {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
    environment |= {name.upper(): value for name, value in keys.items()}
    yield environment | {"AWS_ALLOW_HTTP": "true"}
    server.stop()


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    """Relative links, and the headings that they name, as a forge shows them."""
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        if "://" in link:
            continue
        file, _, heading = link.partition("#")
        target = (ROOT / name).parent / file if file else ROOT / name
        assert target.is_file(), link
        if heading:
            assert heading in headings(target.read_text("utf-8")), link


def headings(text):
    """Return the anchors of a page's headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example, tmp_path):
    """In a fresh process, as a user runs it."""
    skip_without(*NEEDS.get(example.name, ()))
    assert "numcodecs_bytes.zarr" in run_python(example, options={"cwd": tmp_path}).stdout
