"""Ids of the blocks that an attempt at a job makes: the same attempt makes the same ids, wherever its steps run.

The reference takes the time of the block that is listed first, and ids in the order in which they were found: both vary
(docs/design/blocks.md#ids-of-outputs). Ours depend on the set of sources and on the attempt's fencing token. Without
the token, an attempt that was believed dead could finish an upload after a later one has committed, and replace an
object that readers see (docs/adr/0170-outputs-belong-to-an-attempt.md).

A ULID is 128 bits in 26 characters of Crockford's base 32: 48 bits of milliseconds since 1970, 80 bits that tell those
of one millisecond apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from compaction.blocks.errors import BlockIdError

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}
_LENGTH: Final = 26
_TAIL_BITS: Final = 80


def ulid_milliseconds(ulid: str) -> int:
    """When the ULID was made: milliseconds since 1970.

    Raises:
        BlockIdError: it is no ULID in its canonical form (upper case).
    """
    if len(ulid) != _LENGTH or ulid[0] > "7" or not _VALUES.keys() >= set(ulid):
        raise BlockIdError(f"{ulid!r} is not the id of a block: a ULID has 26 characters of {_ALPHABET}, the first 0-7")
    value = 0
    for character in ulid[:10]:
        value = value * 32 + _VALUES[character]
    return value


def output_id(sources: Iterable[str], *, tenant: str, shard: int, level: int, part: int = 0, attempt: str = "") -> str:
    """The ULID of output number `part`, of `level`, that an attempt makes of `sources` (ULIDs, in any order): as old as
    the oldest of them. `attempt`: the job and its fencing token, in words that no other attempt has.

    Raises:
        BlockIdError: there are no sources, one of them comes twice, or one is no ULID.
    """
    ids = sorted(sources)
    if not ids or len(set(ids)) != len(ids):
        raise BlockIdError(f"an output is made of at least one source, and of each once, not of {ids}")
    oldest = min(map(ulid_milliseconds, ids))
    digest = hashlib.sha256()
    # Lengths keep the fields apart: a tenant may hold any character.
    for field in (tenant, str(shard), str(level), str(part), attempt, *ids):
        data = field.encode()
        digest.update(b"%d:%s" % (len(data), data))
    tail = int.from_bytes(digest.digest()[: _TAIL_BITS // 8], "big")
    value = oldest << _TAIL_BITS | tail
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))
