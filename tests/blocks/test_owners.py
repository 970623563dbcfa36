"""What belongs to a table format or to another store is neither registered nor deleted, on whatever stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from compaction.api.policy.block_store import TenantName
from compaction.api.text.printing import printable
from compaction.blocks.errors import ForeignFileError, InvalidTenantError
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.model import (
    BlockPlace,
    block_path,
    escape_tenant,
    parse_block_path,
    place_problem,
    unescape_tenant,
)
from compaction.blocks.owners import (
    BLOCK_STORE,
    DELTA,
    HUDI,
    ICEBERG,
    IDENTITY_PATH,
    SPARK_SINK,
    FileOwner,
    FolderOwners,
    OwnerSign,
    sign_of_path,
)
from compaction.blocks.rebuild.rebuilding import Lake, rebuild_index
from compaction.blocks.registration.describe import describe
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep.cleaning import sweep
from compaction.blocks.sweep.orphan_collector import collect_orphans, find_orphans
from compaction.storage.errors import ObjectAccessError
from compaction.storage.objects.store import ObjectInfo, ObjectStorage, check_path, open_objects
from support.blocks.block_histories import compact
from support.blocks.block_stores import NOON, block_id, fill, upload
from support.blocks.blocks import PATH, parquet, rows
from support.faults.store_faults import Aging
from support.object_stores import S3

SIGNS = {
    "_delta_log/00000000000000000000.json": DELTA,
    "metadata/00004-b10775b2.metadata.json": ICEBERG,
    "metadata/v3.gz.metadata.json": ICEBERG,
    "metadata/version-hint.text": ICEBERG,
    "metadata/snap-7-1-b10775b2.avro": ICEBERG,
    "version-hint.text": ICEBERG,
    ".hoodie/hoodie.properties": HUDI,
    "_spark_metadata/0": SPARK_SINK,
    IDENTITY_PATH: BLOCK_STORE,
}


def around(store: BlockStore, connection: BlockStoreConnection) -> ObjectStorage:
    """All that is one level above the store's root."""
    return open_objects(store.objects.url.rpartition("/")[0], options=connection.options)


@pytest.mark.parametrize(("sign", "owner"), SIGNS.items())
def test_a_sign_owns_all_below_its_folder(block_store: BlockStore, sign: str, owner: FileOwner) -> None:
    objects = block_store.objects
    objects.put(f"wh/table/{sign}", b"{}")
    inside = ["wh/table/x.parquet", "wh/table/region=eu/0/x.parquet", f"wh/table/{sign.rpartition('/')[0]}/x.parquet"]
    inside = [path.replace("//", "/") for path in inside]
    found = FolderOwners(objects).of([*inside, "wh/other/x.parquet", "wh/x.parquet", "x.parquet"])
    assert {path: item.owner for path, item in found.items()} == dict.fromkeys(inside, owner)
    assert all(item.evidence.startswith(("/", "s3://")) for item in found.values())


@pytest.mark.parametrize(
    "path",
    ["t/0/x.parquet", "metadata.json", "metadata/notes.json", "x.metadata.json", "_delta_log", "identity", "a/.hoodie"],
)
def test_most_paths_are_no_sign(path: str) -> None:
    assert sign_of_path(path) is None


@pytest.mark.parametrize("sign", ["_delta_log/0.json", "metadata/v1.metadata.json", IDENTITY_PATH])
def test_a_store_that_begins_inside_a_table_or_store_is_refused(connection: BlockStoreConnection, sign: str) -> None:
    """The sign lies above the root, where the store itself has no paths."""
    top = open_objects(connection.url.rpartition("/")[0], options=connection.options)
    top.put(sign, b"{}")
    with pytest.raises(ForeignFileError, match="no store can begin in this folder: it belongs to"):
        BlockStore.open(connection)
    assert list(open_objects(connection.url, options=connection.options).list()) == []


def test_an_empty_log_in_a_local_folder_is_a_sign(tmp_path: Path) -> None:
    (tmp_path / "table/_delta_log").mkdir(parents=True)
    (tmp_path / "store").mkdir()
    (tmp_path / "store/link").symlink_to(tmp_path / "table")
    objects = open_objects(str(tmp_path / "store"))
    assert FolderOwners(objects).of(["link/x.parquet", "x.parquet"])["link/x.parquet"].owner is DELTA
    assert len(FolderOwners(objects).of(["link/x.parquet", "x.parquet"])) == 1
    (tmp_path / "other").symlink_to(tmp_path / "store")
    (tmp_path / "store/_compaction").mkdir()
    (tmp_path / "store" / IDENTITY_PATH).write_text("x")
    assert FolderOwners(open_objects(str(tmp_path / "other"))).of(["x.parquet"]) == {}, "it is this very store"


def test_each_folder_is_asked_once_and_none_that_a_listing_has_shown(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = FolderOwners._ask

    def noted(self: FolderOwners, folder: str) -> OwnerSign | None:
        asked.append(folder)
        return ask(self, folder)

    monkeypatch.setattr(FolderOwners, "_ask", noted)
    paths = [f"lake/{day}/{number}.parquet" for day in range(3) for number in range(50)]
    owners = FolderOwners(block_store.objects)
    assert owners.of(paths) == owners.of(reversed(paths)) == {}
    root = block_store.objects.from_top()[1]
    above = [root.rpartition("/")[0]]
    while above[-1]:
        above.append(above[-1].rpartition("/")[0])
    assert sorted(asked) == sorted([*above, root, *(f"{root}/lake{rest}" for rest in ("", "/0", "/1", "/2"))])
    block_store.objects.put("lake/1/_delta_log/0.json", b"")
    listed = FolderOwners(block_store.objects)
    assert len(list(listed.noting("lake", block_store.objects.list("lake")))) == 1
    monkeypatch.setattr(FolderOwners, "_remote", lambda self, folder: iter(()))
    assert [path for path in paths if path.startswith("lake/1/")] == list(listed.of(paths))


def test_the_blocks_of_a_tenant_named_metadata_are_not_listed(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, seen = s3.open(s3.bucket()), list[str]()
    for number in range(3):
        objects.put(f"metadata/0/{number}.parquet", b"")

    def noting(plain: Callable[..., Iterable[ObjectInfo]]) -> Callable[..., Iterator[ObjectInfo]]:
        def noted(self: ObjectStorage, path: str) -> Iterator[ObjectInfo]:
            for item in plain(self, path):
                seen.append(item.path)
                yield item

        return noted

    for name in ("list", "inside"):
        monkeypatch.setattr(ObjectStorage, name, noting(getattr(ObjectStorage, name)))
    assert FolderOwners(objects).of(["metadata/0/1.parquet", "lake/x.parquet"]) == {}
    assert seen == []
    objects.put("metadata/v1.metadata.json", b"{}")
    assert FolderOwners(objects).of(["lake/x.parquet"])["lake/x.parquet"].owner is ICEBERG


def test_what_was_found_is_asked_again_after_a_while(block_store: BlockStore) -> None:
    now = 0.0
    owners = FolderOwners(block_store.objects, keep=60, clock=lambda: now)
    assert owners.of(["lake/x.parquet"]) == {}
    block_store.objects.put("lake/_delta_log/0.json", b"")
    assert owners.of(["lake/x.parquet"]) == {}
    now = 61.0
    assert owners.of(["lake/x.parquet"])["lake/x.parquet"].owner is DELTA


def test_what_may_not_be_listed_counts_below_the_root_only(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials often end at the root of the store; inside, nothing is known while the store does not say."""
    root = block_store.objects.from_top()[1]
    denied = ["", root.rpartition("/")[0]]

    def refuse(folder: str) -> None:
        if folder in denied:
            raise ObjectAccessError(folder, "access denied")

    remote = FolderOwners._remote

    def refusing(self: FolderOwners, folder: str) -> Iterator[OwnerSign]:
        refuse(folder)
        return remote(self, folder)

    def refusing_locally(folder: Path) -> Iterator[OwnerSign]:
        refuse(str(folder).strip("/"))
        return iter(())

    monkeypatch.setattr(FolderOwners, "_remote", refusing)
    monkeypatch.setattr("compaction.blocks.owners._signs_in", refusing_locally)
    assert FolderOwners(block_store.objects).of(["lake/x.parquet"]) == {}
    denied.append(f"{root}/lake")
    with pytest.raises(ObjectAccessError, match="its owner is not known"):
        FolderOwners(block_store.objects).of(["lake/x.parquet"])


def test_a_table_that_a_folder_has_become_is_not_deleted(block_store: BlockStore) -> None:
    """Evidence that came after the registration: replaced blocks, and all that is due, stay, and are named."""
    fill(block_store, [1, 2, 3])
    compact(block_store, [block_id(1), block_id(2)], now=NOON)
    block_store.objects.put("acme/metadata/v1.metadata.json", b"{}")
    done = sweep(block_store.objects, block_store.index, now=NOON, grace=0)
    assert (done.blocks, set(done.failed)) == (0, {block_id(1), block_id(2)})
    assert all("it is kept: it belongs to an Apache Iceberg table" in reason for reason in done.failed.values())
    again = sweep(block_store.objects, block_store.index, now=NOON + 1, grace=0)
    assert set(again.failed) == {block_id(1), block_id(2)}, "what waits for another try is not forgotten"
    block_store.objects.delete(["acme/metadata/v1.metadata.json"])
    assert sweep(block_store.objects, block_store.index, now=NOON + 10**9, grace=0).blocks == 2


def test_orphans_of_others_are_not_collected(block_store: BlockStore, age: Aging) -> None:
    """Files of a store inside this one look like blocks of this one."""
    orphan, other = upload(block_store, 8), upload(block_store, 9, tenant="inner")
    block_store.objects.put(f"inner/{IDENTITY_PATH}", b"x")
    for path in (orphan, other, IDENTITY_PATH):
        age(block_store.objects, path, 30 * 86_400)
    search = find_orphans(block_store.objects, block_store.index)
    assert ([orphan.path for orphan in search.orphans], list(search.owned)) == ([orphan], [other])
    collected = collect_orphans(block_store.objects, block_store.index, now=NOON)
    assert (collected.objects, list(collected.failed)) == (1, [other])
    assert block_store.objects.head(other).size


def test_registration_and_rebuild_name_what_is_not_theirs(block_store: BlockStore, tmp_path: Path) -> None:
    path = upload(block_store, 1)
    block_store.objects.put("lake/a.parquet", parquet(rows(5)))
    block_store.objects.put("lake/metadata/v1.metadata.json", b"{}")
    fill(block_store, [2])
    fresh = IndexDatabase.open(f"sqlite:///{tmp_path}/fresh.db")
    result = rebuild_index(block_store.objects, fresh, now=NOON, lakes=[Lake("lake", "acme", 0)])
    assert (result.blocks, list(result.unreadable)) == (2, ["lake/a.parquet"])
    assert "an Apache Iceberg table" in result.unreadable["lake/a.parquet"]
    block_store.objects.put("acme/.hoodie/hoodie.properties", b"")
    with pytest.raises(ForeignFileError, match="an Apache Hudi table"):
        replace(block_store, index=fresh).register([path], tenant="acme", shard=0)
    fresh.close()


@pytest.mark.parametrize(
    ("key", "owner"),
    [("iceberg.schema", ICEBERG), ("org.apache.hudi.bloomfilter", HUDI), ("hoodie_min_record_key", HUDI)],
)
def test_a_footer_says_whose_the_file_is(tmp_path: Path, key: str, owner: FileOwner) -> None:
    """A data file may lie far from the metadata of its table."""
    objects = open_objects(str(tmp_path))
    objects.put(PATH, parquet(rows(5).replace_schema_metadata({key: "{}"})))
    with pytest.raises(ForeignFileError, match=f"{owner.what}.*{key}"):
        describe(objects, PATH, tenant="acme", shard=0, level=0)


def test_the_columns_of_hudi_are_a_sign_together(tmp_path: Path) -> None:
    objects, text = open_objects(str(tmp_path)), pa.array(["x"] * 5)
    one = rows(5).append_column("_hoodie_commit_time", text)
    objects.put(PATH, parquet(one))
    assert describe(objects, PATH, tenant="acme", shard=0, level=0).rows == 5
    objects.put(PATH, parquet(one.append_column("_hoodie_record_key", text)))
    with pytest.raises(ForeignFileError, match="_hoodie_record_key"):
        describe(objects, PATH, tenant="acme", shard=0, level=0)


# Every tenant has a folder of its own, and what is not ours is recognised.

ULID = "01JD0000000000000000000000"
TENANTS = st.text(min_size=1, max_size=20).filter(lambda tenant: printable(tenant) == tenant)


@given(TENANTS, st.integers(0, 2**31 - 1))
def test_a_path_says_whose_it_is(tenant: str, shard: int) -> None:
    path = block_path(tenant, shard, ULID)
    assert check_path(path) == path
    assert path.count("/") == 2
    assert parse_block_path(path) == BlockPlace(tenant, shard, ULID)


@given(TENANTS, TENANTS)
def test_two_tenants_never_share_a_folder(one: str, other: str) -> None:
    assert (escape_tenant(one) == escape_tenant(other)) == (one == other)


@given(st.one_of(st.text(max_size=80), st.text("a.é\n\u202e", max_size=200)))
def test_resources_and_paths_have_one_rule(tenant: str) -> None:
    """Also with a line break at its end, which `$` of an expression passes over."""
    taken = TypeAdapter(TenantName)
    try:
        taken.validate_python(tenant)
    except ValidationError:
        assert place_problem(tenant, 0)
    else:
        assert not place_problem(tenant, 0)


@given(st.text(max_size=12))
def test_only_what_we_write_is_read(part: str) -> None:
    tenant = unescape_tenant(part)
    assert tenant is None or escape_tenant(tenant) == part


@pytest.mark.parametrize(
    ("tenant", "part"),
    [
        ("acme", "acme"),
        ("..", "=2E."),
        (".", "=2E"),
        ("a/b", "a=2Fb"),
        ("=41", "=3D41"),
        ("ü", "=C3=BC"),
        ("a.b", "a.b"),
    ],
)
def test_tenants_are_escaped(tenant: str, part: str) -> None:
    assert escape_tenant(tenant) == part


@pytest.mark.parametrize("tenant", ["", "x" * 201, "ü" * 40, "\ud800", "a\nb", "b\n", "\0", "a\u202eb"])
def test_tenants_without_a_path_are_refused(tenant: str) -> None:
    with pytest.raises(InvalidTenantError):
        escape_tenant(tenant)


@pytest.mark.parametrize(
    "path",
    [
        f"acme/0/{ULID.lower()}.parquet", f"acme/00/{ULID}.parquet", f"acme/-1/{ULID}.parquet", f"acme/0/{ULID}", ULID,
        f"acme/0/8{ULID[1:]}.parquet", f"acme/0/{ULID}.parquet.tmp", f"a=2fb/0/{ULID}.parquet", f"=41/0/{ULID}.parquet",
        f"x/acme/0/{ULID}.parquet", f"acme/{2**31}/{ULID}.parquet", f"=FF/0/{ULID}.parquet",
        f"acme/\u0661/{ULID}.parquet", f"a=0Ab/0/{ULID}.parquet",
    ],
)  # fmt: skip
def test_what_is_not_ours_is_left_alone(path: str) -> None:
    assert parse_block_path(path) is None


def test_no_block_has_such_a_place() -> None:
    for shard, block in ((-1, ULID), (2**31, ULID), (0, "x"), (0, ULID.lower())):
        with pytest.raises(ValueError, match=r"shard|ULID"):
            block_path("t", shard, block)
