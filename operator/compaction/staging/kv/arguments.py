"""What a key-value store cannot hold, refused before a database sees it; errors name the partition and the key."""

from __future__ import annotations

from compaction.errors import shown_bytes
from compaction.staging.errors import KeyValueArgumentError
from compaction.staging.kv.port import MAX_KEY_BYTES, MAX_VALUE_BYTES


def partition_bytes(partition: str) -> bytes:
    """The bytes of a partition's name: UTF-8, apart from the bytes that `surrogateescape` stands for."""
    if not isinstance(partition, str) or not partition:
        raise KeyValueArgumentError(f"partition {partition!a}: its name is empty or not text; pass the name as a str")
    try:
        return partition.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise KeyValueArgumentError(
            f"partition {partition[:80]!a}: its name is not Unicode text; decode it with surrogateescape"
        ) from None


def check_key(partition: str, key: bytes) -> None:
    """Raises KeyValueArgumentError for a key that no row can have."""
    if not isinstance(key, bytes) or not key:
        raise KeyValueArgumentError(f"{partition}: key {key!a}: it is empty or not bytes; pass at least one byte")


def check_row(partition: str, name: bytes, key: bytes, value: bytes) -> None:
    """Raises KeyValueArgumentError for a row that cannot be written. `name`: the partition's bytes."""
    check_key(partition, key)
    if len(name) + len(key) > MAX_KEY_BYTES:
        raise KeyValueArgumentError(
            f"{partition}: key {shown_bytes(key)}...: its {len(key)} bytes and the {len(name)} of the partition's name "
            f"are more than the {MAX_KEY_BYTES} that a database can index; use a shorter key"
        )
    if not isinstance(value, bytes):
        raise KeyValueArgumentError(
            f"{partition}: key {shown_bytes(key)}: its value is a {type(value).__name__}; pass bytes, or delete the row"
        )
    if len(value) > MAX_VALUE_BYTES:
        raise KeyValueArgumentError(
            f"{partition}: key {shown_bytes(key)}: its value of {len(value)} bytes exceeds {MAX_VALUE_BYTES}; "
            "store it as an object"
        )
