"""Listings of folders: what the library of objects finds, and on where it gives up."""

from __future__ import annotations

import os
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore

from compaction.storage.errors import ObjectAccessError
from compaction.storage.objects import store
from compaction.storage.objects.store import ObjectInfo, ObjectStorage, open_objects


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files in folders, some of them reached through links."""
    root = tmp_path / "store"
    for name in (
        "t/0/a b.parquet",
        "t/0/\u00fc%20.parquet",
        "t/1/deep/er/x",
        ".hidden",
        "back\\slash",
        "t/x#1",
        "t/x#y",
    ):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "y").write_bytes(b"y")
    (root / "linked").symlink_to(outside)
    (root / "t/0/file").symlink_to(outside / "y")
    (root / "t/dangling").symlink_to("nowhere")
    return root


def listed(objects: ObjectStorage, prefix: str = "") -> list[ObjectInfo]:
    return sorted(objects.list(prefix), key=lambda info: info.path)


@pytest.mark.parametrize("prefix", ["", "t", "t/0", "linked", "nothing", "t/x#y"])
def test_a_folder_is_listed_as_the_library_does(root: Path, prefix: str) -> None:
    found = obstore.list(LocalStore(root), prefix or None)
    expected = [
        ObjectInfo(item["path"], item["size"], item["e_tag"] or "", item["last_modified"])
        for page in found
        for item in page
    ]
    objects = open_objects(str(root))
    assert listed(objects, prefix) == sorted(expected, key=lambda info: info.path)
    assert all(objects.head(info.path) == info for info in listed(objects, prefix) if "\\" not in info.path)
    assert objects.skipped == {}


def test_links_in_circles_and_names_that_are_none_are_passed_over_and_named(root: Path) -> None:
    objects = open_objects(str(root))
    before = listed(objects)
    (root / "t/1/up").symlink_to("..")
    (root / "t/1/deep/top").symlink_to(root)
    (root / "t/self").symlink_to("self")
    (root / "t/1/deep/here").symlink_to(".")
    (root / "t/0/line\nbreak").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(root / "t") + b"/\xff")).write_bytes(b"")
    assert listed(objects) == before
    assert set(objects.skipped) == {
        "t/1/up", "t/1/deep/top", "t/1/deep/here", "t/self", r"'t/0/line\nbreak'", r"'t/\udcff'",
    }  # fmt: skip
    circle = "a symbolic link leads back to a folder that holds it"
    assert objects.skipped["t/1/up"] == circle
    assert [info.path for info in listed(objects, "t/1")] == ["t/1/deep/er/x"]


def test_a_folder_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes what is out of reach for gone makes an index without it."""

    def refuse(folder: Path) -> list[str]:
        if folder.name == "1":
            raise PermissionError(13, "Permission denied")
        return os.listdir(folder)

    monkeypatch.setattr(store, "listdir", refuse)
    with pytest.raises(ObjectAccessError, match="t/1: access denied"):
        listed(open_objects(str(root)))
