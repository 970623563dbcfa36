"""The metadata about a block in its own footer, so that a lost index can be rebuilt from the objects alone.

Keys begin with `compaction.dev.`; values are text (numbers decimal, lists JSON). Blocks of foreign writers need none
of it; what they do write is believed only after it was compared with the block (`describe`).

`sources`, `job`, `token`, `part` and `parts` say what a block replaces. A set of outputs is what one attempt (`job` and
`token`) made of the same `sources`: after the loss of an index, blocks that a complete set names as sources are dead,
and outputs of an incomplete set never lived. Of several complete sets with a source in common, left by attempts that
did not commit, at most one lived; each of them holds the rows of its sources.

`outputs` and `ancestors` are for the times between: an output that is missing may itself have been replaced, and the
block that replaced a source may be replaced and deleted while what a dead attempt made of that source is still there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from compaction.blocks.model import ALGORITHM, ULID_TEXT, RowFingerprint

PREFIX: Final = "compaction.dev."
VERSION: Final = "1"
MAX_NUMBER: Final = 1 << 63
MAX_ANCESTORS: Final = 4096
"""About 100 KiB of a footer; three levels of 20, 10 and 10 blocks have 2,110."""
_ULID: Final = 26


@dataclass(frozen=True, slots=True)
class BlockMetadata:
    """The statements of a block about itself. Times are epoch microseconds. None or empty: the block does not say.

    `sources` are ids of blocks, `token` is that of the attempt, `part` counts from 0 below `parts`; `outputs` are the
    ids of all parts, in order. `ancestors`: what the sources were made of, and that of, the nearest first (`ancestry`).
    """

    id: str | None = None
    tenant: str | None = None
    shard: int | None = None
    level: int | None = None
    time_column: str | None = None
    fingerprint: RowFingerprint | None = None
    sort_key: tuple[str, ...] | None = None
    job: str | None = None
    part: int = 0
    parts: int = 1
    sources: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    ancestors: tuple[str, ...] = ()
    token: int | None = None

    def encode(self) -> dict[bytes, bytes]:
        """As key-value metadata of Parquet, to be added before the file is closed."""
        pairs: dict[str, str] = {"version": VERSION, "fingerprint-algorithm": ALGORITHM}
        texts = {"id": self.id, "tenant": self.tenant, "time-column": self.time_column, "job": self.job}
        pairs |= {key: value for key, value in texts.items() if value is not None}
        numbers = {"shard": self.shard, "level": self.level, "token": self.token}
        pairs |= {key: str(value) for key, value in numbers.items() if value is not None}
        if self.fingerprint is not None:
            pairs["fingerprint"] = str(self.fingerprint)
        if self.sort_key is not None:
            pairs["sort-key"] = json.dumps(self.sort_key)
        if self.sources:
            pairs |= {"sources": json.dumps(self.sources), "part": str(self.part), "parts": str(self.parts)}
        if self.outputs:
            pairs["outputs"] = json.dumps(self.outputs)
        if self.ancestors:
            pairs["ancestors"] = "".join(self.ancestors)
        return {(PREFIX + key).encode(): value.encode() for key, value in pairs.items()}


def decode(metadata: Mapping[str, str]) -> BlockMetadata:
    """The inverse of `encode`, from `Footer.metadata`. Unknown keys are ignored.

    A fingerprint of another algorithm is left out: it says nothing to us. Raises ValueError, naming the key.
    """
    given = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    if given.get("version", VERSION) != VERSION:
        # A later version may mean other things by the same keys.
        return BlockMetadata()
    fingerprint = None
    if given.get("fingerprint-algorithm") == ALGORITHM and "fingerprint" in given:
        try:
            fingerprint = RowFingerprint.parse(given["fingerprint"])
        except ValueError:
            raise ValueError(f"{PREFIX}fingerprint is not one") from None
    part, parts = _number(given, "part") or 0, _number(given, "parts")
    parts = 1 if parts is None else parts
    if not part < parts:
        raise ValueError(f"{PREFIX}part is {part} of {parts}")
    return BlockMetadata(
        id=given.get("id"),
        tenant=given.get("tenant"),
        shard=_number(given, "shard"),
        level=_number(given, "level"),
        time_column=given.get("time-column"),
        fingerprint=fingerprint,
        sort_key=_names(given, "sort-key"),
        job=given.get("job"),
        token=_number(given, "token"),
        part=part,
        parts=parts,
        sources=_names(given, "sources") or (),
        outputs=_names(given, "outputs") or (),
        ancestors=_ancestors(given),
    )


def ancestry(sources: Iterable[BlockMetadata]) -> tuple[str, ...]:
    """The `ancestors` of a block merged from these: generation by generation, up to `MAX_ANCESTORS`."""
    given = tuple(sources)
    near = (block for source in given for block in source.sources)
    far = (block for source in given for block in source.ancestors)
    return tuple(dict.fromkeys([*near, *far]))[:MAX_ANCESTORS]


def _number(given: Mapping[str, str], key: str) -> int | None:
    text = given.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < MAX_NUMBER):
        raise ValueError(f"{PREFIX}{key} is not a number")
    return int(text)


def _names(given: Mapping[str, str], key: str) -> tuple[str, ...] | None:
    text = given.get(key)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        # Refused below, in the words for JSON of another form.
        value = None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{PREFIX}{key} is not a list of texts")
    return tuple(value)


def _ancestors(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("ancestors", "")
    ids = tuple(text[start : start + _ULID] for start in range(0, len(text), _ULID))
    if len(ids) > MAX_ANCESTORS or not all(ULID_TEXT.fullmatch(block) for block in ids):
        raise ValueError(f"{PREFIX}ancestors are no ids of blocks")
    return ids
