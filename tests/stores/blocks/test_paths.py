"""Every tenant has a folder of its own, and what is not ours is recognised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from compaction.api.policy.block_store import TenantName
from compaction.api.text.printing import printable
from compaction.blocks.errors import InvalidTenantError
from compaction.blocks.model import (
    BlockPlace,
    block_path,
    escape_tenant,
    parse_block_path,
    place_problem,
    unescape_tenant,
)
from compaction.storage.objects.store import check_path

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
