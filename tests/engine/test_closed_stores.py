"""Stores that are not open, or whose folder is gone, end as with zarr alone."""

import shutil

import pytest
import zarr
from helpers import create
from zarr.storage import LocalStore, ObjectStore


def test_a_closed_store_whose_folder_is_gone(tmp_path):
    """Its chunks were read as the fill value; zarr's `get` opens it, and raises."""
    create(tmp_path / "a", (4, 4))[:] = 1
    store = LocalStore(tmp_path / "a", read_only=True)
    array = zarr.open_array(store, mode="r")
    store.close()
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        array[:]


def test_a_link_that_is_pointed_elsewhere(tmp_path):
    """obstore's LocalStore looks at it once; the other folder was read."""
    stores = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
    for number in (1, 2):
        create(tmp_path / f"v{number}", (200, 200))[:] = number
    link = tmp_path / "latest"
    link.symlink_to("v1")
    array = zarr.open_array(ObjectStore(stores.LocalStore(str(link))), mode="r")
    link.unlink()
    link.symlink_to("v2")
    assert array[3, 3] == 1
