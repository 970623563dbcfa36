"""Targets of block stores: files that say they are Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa

from compaction.blocks.format.footer import read_footer
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.format.thrift import FooterError, decode
from compaction.blocks.registration.describe import describe
from compaction.storage.objects.store import open_objects
from fuzz.target import Target, refusing
from support.blocks.blocks import PATH, ULID, footer_of, parquet, rows, with_footer

_NESTED: Final = (
    rows(30)
    .append_column("list", pa.array([[1, 2], [], None] * 10))
    .append_column("struct", pa.array([{"a": 1, "b": "x"}] * 30))
    .append_column("cost", pa.array([1] * 30, pa.decimal128(20, 2)))
)
_FILES: Final = (
    parquet(rows(40), BlockMetadata(tenant="acme"), row_group_size=20, sorted_by=["service", "time"]),
    parquet(_NESTED, row_group_size=15, compression="zstd", write_page_index=True),
    parquet(rows(20), use_dictionary=False, version="1.0", data_page_version="2.0"),
)
_TOKENS: Final = (
    b"PAR1",
    b"PARE",
    b"\x00",
    b"\xff" * 9 + b"\x7f",
    b"\x19\xfc",
    b"\x1c" * 40,
    b"\x19" * 40,
    b"\x15\x02",
)


def _file(data: bytes, directory: Path) -> None:
    """The whole way of a registration, all rows read."""
    (directory / "acme" / "0").mkdir(parents=True)
    (directory / PATH).write_bytes(data)
    with refusing(PATH):
        describe(open_objects(str(directory)), PATH, tenant="acme", shard=0, level=0, block=ULID, verify=True)


def _footer(data: bytes, directory: Path) -> None:
    (directory / "block").write_bytes(with_footer(data, body=bytes(4096)))
    with refusing("block"):
        read_footer(open_objects(str(directory)), "block")


def _compact(data: bytes, directory: Path) -> None:
    with refusing("", FooterError):
        assert isinstance(decode(data), dict)


BLOCK_TARGETS: Final[tuple[Target, ...]] = (
    Target("block file", _file, _FILES, _TOKENS),
    Target("block footer", _footer, tuple(footer_of(file) for file in _FILES), _TOKENS),
    Target("compact protocol", _compact, tuple(footer_of(file) for file in _FILES), _TOKENS),
)
