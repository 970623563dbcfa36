"""What every store of objects does alike."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import LocalStore

from compaction.local.cluster.certs import ensure_authority
from compaction.storage.errors import (
    ObjectAccessError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectPathError,
    ObjectStoreUnavailableError,
    ObjectStoreUrlError,
    ObjectTruncatedError,
)
from compaction.storage.objects import store
from compaction.storage.objects import store as objects_module
from compaction.storage.objects.reader import ObjectReader
from compaction.storage.objects.store import NEAR_BYTES, ObjectInfo, ObjectStorage, Retrying, coalesce, open_objects
from tools.servers.versitygw import free_port, start_versitygw

DATA = bytes(range(256)) * 40


def test_what_was_put_is_what_is_read(objects: ObjectStorage, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(DATA)
    stream = io.BytesIO(b"skipped" + DATA)
    stream.seek(7)
    for path, data in (("a/bytes", DATA), ("a/path", file), ("a/stream", stream), ("a/b/empty", b"")):
        objects.put(path, data)
    assert [objects.get(f"a/{name}") == DATA for name in ("bytes", "path", "stream")] == [True] * 3
    assert objects.get("a/b/empty") == b""
    objects.put("a/bytes", b"other")
    assert objects.get("a/bytes") == b"other"


def test_large_objects_go_in_parts(objects: ObjectStorage) -> None:
    data = DATA * (2 * objects_module.PART_BYTES // len(DATA) + 1)
    objects.put("large", io.BytesIO(data))
    assert objects.head("large").size == len(data)
    assert objects.get("large") == data


def test_ranges_are_exact_or_an_error(objects: ObjectStorage) -> None:
    objects.put("o", DATA)
    assert objects.get_range("o", 5, 100) == DATA[5:105]
    assert objects.get_range("o", len(DATA) - 1, 1) == DATA[-1:]
    assert objects.get_range("o", 5, 0) == b""
    for start, length in ((len(DATA) - 1, 2), (len(DATA), 1), (len(DATA) + 100, 1)):
        with pytest.raises(ObjectTruncatedError, match=r"^o: "):
            objects.get_range("o", start, length)
        with pytest.raises(ObjectTruncatedError):
            objects.get_ranges("o", [(0, 1), (start, length)])
    wanted = [(9000, 10), (0, 3), (4, 0), (3, 5), (0, 3)]
    assert objects.get_ranges("o", wanted) == [DATA[start : start + length] for start, length in wanted]
    assert objects.get_ranges("o", []) == []


def test_head_says_size_and_age_and_another_etag_after_a_change(objects: ObjectStorage) -> None:
    objects.put("a/o", b"one")
    before = objects.head("a/o")
    assert (before.path, before.size) == ("a/o", 3)
    assert abs(before.modified - datetime.now(UTC)) < timedelta(days=1)
    objects.put("a/o", b"other")
    assert objects.head("a/o").etag != before.etag
    with pytest.raises(ObjectChangedError, match="a/o"):
        objects.get_range("a/o", 0, 1, etag=before.etag)


def test_missing_is_missing(objects: ObjectStorage) -> None:
    objects.put("a/b", b"x")
    for call in (objects.get, objects.head, objects.reader, lambda path: objects.get_range(path, 0, 1)):
        for path in ("nothing", "a", "a/b/c"):
            with pytest.raises(ObjectMissingError, match=path):
                call(path)


def test_a_path_never_leaves_the_store(objects: ObjectStorage) -> None:
    for path in (
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        "./a",
        "a\\b",
        "a\0",
        "a\n",
        "x" * 256,
        "a/" * 600 + "a",
        "a#1",
    ):
        with pytest.raises(ObjectPathError):
            objects.get(path)
        with pytest.raises(ObjectPathError):
            objects.put(path, b"")
        with pytest.raises(ObjectPathError):
            objects.delete([path])


def test_odd_names_are_names(objects: ObjectStorage) -> None:
    names = ["t=2F1/0/x.parquet", "a b/c+d", "ü/é", "%41/x", "q?x=1&y", "a#b/c", "star*", "~/-", "x'y\"z"]
    for name in names:
        objects.put(name, name.encode())
    assert sorted(info.path for info in objects.list()) == sorted(names)
    assert all(objects.get(name) == name.encode() for name in names)
    assert objects.delete(names) == []
    assert list(objects.list()) == []


def test_listing_gives_every_object_below_a_folder(objects: ObjectStorage) -> None:
    names = {f"t/{shard}/{number}" for shard in (0, 1, 10) for number in range(40)}
    for name in names:
        objects.put(name, b"123")
    assert {info.path for info in objects.list()} == names
    assert {info.path for info in objects.list("t/1")} == {name for name in names if name.startswith("t/1/")}
    assert all(info.size == 3 and info.etag for info in objects.list("t"))
    assert list(objects.list("nothing")) == []


def test_listing_is_longer_than_one_answer(objects: ObjectStorage) -> None:
    names = [f"many/{number:05}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: objects.put(name, b""), names))
    assert sorted(info.path for info in objects.list("many")) == names
    assert objects.delete(names) == []
    assert list(objects.list()) == []


def test_deleting_what_is_not_there_is_a_deletion(objects: ObjectStorage) -> None:
    for name in ("a", "b"):
        objects.put(name, b"x")
    assert objects.delete(["a", "nothing", "b", "folder/nothing"]) == []
    assert objects.delete(["a"]) == []
    assert objects.delete([]) == []
    assert list(objects.list()) == []


def test_of_many_creators_one_wins(objects: ObjectStorage) -> None:
    start = threading.Barrier(16)

    def create(number: int) -> bool:
        start.wait()
        try:
            objects.put("claim", f"{number}".encode(), if_absent=True)
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1
    assert objects.get("claim") == f"{won.index(True)}".encode()
    with pytest.raises(ObjectExistsError, match="claim"):
        objects.put("claim", objects.get("claim"), if_absent=True)


def test_a_reader_is_a_file_for_parquet(objects: ObjectStorage) -> None:
    table = pa.table({"a": range(100_000), "b": [f"{i}" for i in range(100_000)]})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=10_000)
    objects.put("t.parquet", file.getvalue())
    with objects.reader("t.parquet") as reader:
        assert pq.ParquetFile(reader, pre_buffer=False).read().equals(table)
    with objects.reader("t.parquet") as reader:
        assert pq.ParquetFile(reader, pre_buffer=True).read_row_group(3).equals(table.slice(30_000, 10_000))


def test_a_reader_reads_one_version_only(objects: ObjectStorage) -> None:
    objects.put("o", DATA)
    reader = objects.reader("o")
    objects.put("o", DATA[::-1])
    with pytest.raises(ObjectChangedError):
        reader.read(10)


@given(st.lists(st.tuples(st.integers(0, 10 * NEAR_BYTES), st.integers(0, 2 * NEAR_BYTES)), max_size=12))
def test_coalesced_ranges_hold_all(ranges: list[tuple[int, int]]) -> None:
    spans = coalesce(ranges)
    assert all(item[0] + item[1] < other[0] for item, other in pairwise(spans))
    for start, length in ranges:
        assert not length or any(item <= start and start + length <= item + size for item, size in spans)
    assert sum(size for _, size in spans) <= sum(length + NEAR_BYTES for _, length in ranges)


@pytest.mark.parametrize(
    ("url", "options", "wanted"),
    [
        ("https://acc.blob.core.windows.net/cont/a/b", {}, "az://cont/a/b"),
        ("https://acc.blob.core.windows.net/cont", {}, "az://cont"),
        ("https://acc.blob.core.chinacloudapi.cn/cont/p", {}, "az://cont/p"),
    ],
)
def test_azure_as_its_own_tools_and_lakefs_name_it(url: str, options: dict[str, str], wanted: str) -> None:
    assert open_objects(url, options={"account_key": "a2V5", **options}).url == wanted


@pytest.mark.parametrize(
    "url", ["https://example.org/x", "https://acc.blob.core.windows.net/", "http://h/x", "local://x"]
)
def test_other_urls_say_what_is_possible(url: str) -> None:
    with pytest.raises(ObjectStoreUrlError, match=r"no such kind of object store; use s3, gs|local_path"):
        open_objects(url)


NO_AUTHORITIES = """
from compaction.storage.objects.store import open_objects
from compaction.storage.errors import ObjectStoreUrlError
try:
    open_objects("s3://b/p", options={"endpoint": "http://127.0.0.1:1", "allow_http": "true"})
except ObjectStoreUrlError as error:
    print(error)
"""


def test_a_machine_without_authorities_says_so_and_one_with_a_bundle_needs_none(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    none = os.environ | {"SSL_CERT_FILE": nowhere, "SSL_CERT_DIR": nowhere}
    said = subprocess.run([sys.executable, "-c", NO_AUTHORITIES], env=none, capture_output=True, text=True, check=True)
    assert "install the package ca-certificates, or name a file of them in SSL_CERT_FILE or in caBundle" in said.stdout
    own = none | {"SSL_CERT_FILE": str(ensure_authority(tmp_path).ca)}
    said = subprocess.run([sys.executable, "-c", NO_AUTHORITIES], env=own, capture_output=True, text=True, check=True)
    assert said.stdout == ""


def test_a_server_of_a_private_authority_is_trusted_with_its_bundle_only(
    tmp_path: Path, versitygw_program: Path
) -> None:
    authority = ensure_authority(tmp_path / "authority")
    stranger = ensure_authority(tmp_path / "stranger").ca.read_text()
    with start_versitygw(tmp_path / "s3", versitygw_program, port=free_port(), authority=authority) as gateway:
        url = f"s3://{gateway.make_bucket('lake')}/blocks"
        opened = open_objects(url, options=gateway.options())
        opened.put("a", b"1")
        both = stranger + gateway.options()["root_certificate"]
        assert open_objects(url, options=gateway.options() | {"root_certificate": both}).get("a") == b"1"
        with pytest.raises(ObjectStoreUnavailableError, match="of an authority that is not trusted here: name"):
            open_objects(
                url, options=gateway.options() | {"root_certificate": stranger}, retrying=Retrying(tries=1)
            ).get("a")


def test_a_local_namespace_is_below_the_folder_of_its_option(tmp_path: Path) -> None:
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "x").write_bytes(b"1")
    assert open_objects("local://example", options={"local_path": str(tmp_path)}).get("x") == b"1"
    with pytest.raises(ObjectStoreUrlError, match=r"blockstore\.local\.path"):
        open_objects("local://../example", options={"local_path": str(tmp_path)})


# Listings of folders: what the library of objects finds, and on where it gives up.


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


# A reader is the bytes it stands for, fetches little, and keeps less.

CONTENT = bytes(range(251)) * 4

STEPS = st.lists(
    st.tuples(
        st.sampled_from([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END]), st.integers(-1100, 1100), st.integers(-1, 1200)
    ),
    max_size=20,
)


def reader_of(data: bytes, *, window: int, windows: int) -> tuple[ObjectReader, list[tuple[int, int]]]:
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, length: int) -> bytes:
        assert 0 <= start < start + length <= len(data)
        fetched.append((start, length))
        return data[start : start + length]

    return ObjectReader("o", len(data), fetch, window=window, windows=windows), fetched


@given(STEPS, st.integers(1, 300), st.integers(1, 4))
def test_it_reads_like_a_file(steps: list[tuple[int, int, int]], window: int, windows: int) -> None:
    reader, _ = reader_of(CONTENT, window=window, windows=windows)
    model = io.BytesIO(CONTENT)
    for whence, offset, size in steps:
        place = {io.SEEK_SET: 0, io.SEEK_CUR: model.tell(), io.SEEK_END: len(CONTENT)}[whence] + offset
        if place < 0:
            with pytest.raises(ValueError, match="before the beginning"):
                reader.seek(offset, whence)
            continue
        assert reader.seek(offset, whence) == model.seek(place)
        assert reader.read(size) == model.read(size)
        assert reader.tell() == model.tell() or model.tell() > len(CONTENT)
        assert len(reader._kept) <= windows


def test_small_reads_share_a_request_and_large_ones_go_through() -> None:
    reader, fetched = reader_of(CONTENT, window=100, windows=2)
    for _ in range(20):
        reader.read(5)
    assert fetched == [(0, 100)]
    reader.seek(50)
    assert reader.read(500) == CONTENT[50:550]
    assert fetched[1:] == [(50, 500)]
    buffer = bytearray(7)
    reader.seek(-7, io.SEEK_END)
    assert reader.readinto(buffer) == 7
    assert bytes(buffer) == CONTENT[-7:]
    assert reader.bytes_fetched == sum(length for _, length in fetched)


def test_an_empty_object_and_a_closed_reader() -> None:
    reader, fetched = reader_of(b"", window=10, windows=1)
    assert reader.read() == b""
    assert reader.size() == 0
    assert fetched == []
    reader, _ = reader_of(CONTENT, window=10, windows=1)
    reader.close()
    with pytest.raises(ValueError, match="after close"):
        reader.read(1)
