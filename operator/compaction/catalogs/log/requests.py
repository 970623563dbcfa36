"""Every transaction of an update log (docs/design/catalogs.md#transactions-of-the-log).

Each may run twice without harm: after a lost answer the client sends it again. None reads where it fails; every number
only grows, so a reading afterwards shows as much and most requests stay small.
"""

from __future__ import annotations

from typing import Final

from compaction.catalogs.log.etcd.port import (
    Absent,
    Compare,
    DeleteRange,
    Get,
    Put,
    Relation,
    Transaction,
)
from compaction.catalogs.log.layout import FIRST_VERSION, PRODUCT, Keys, last, number

AT_ONCE: Final = 1_000
"""Versions that one range delete takes: etcd answers nothing else meanwhile."""


def first_keys(keys: Keys) -> Transaction:
    """Make a prefix a log, unless it holds anything of one."""
    return Transaction(
        tuple(Absent(key) for key in (keys.product, keys.version, keys.snapshot, keys.token)),
        (
            Put(keys.product, PRODUCT),
            Put(keys.version, last(0, 0)),
            Put(keys.snapshot, number(FIRST_VERSION)),
            Put(keys.token, number(0)),
        ),
    )


def survey(keys: Keys, version: int = 0) -> Transaction:
    """Read the numbers of the log in one revision, and the key of a version."""
    wanted = (keys.product, keys.version, keys.snapshot, keys.token, keys.update(version))
    return Transaction((), tuple(map(Get, wanted)))


def append(keys: Keys, version: int, activation: int, value: bytes) -> Transaction:
    """Write a version after the one before it, later than that one: the last version's two numbers are between
    (version - 1, any time) and (version - 1, activation).
    """
    return Transaction(
        (
            Compare(keys.version, Relation.GREATER, number(version - 1)),
            Compare(keys.version, Relation.LESS, last(version - 1, activation)),
        ),
        (Put(keys.update(version), value), Put(keys.version, last(version, activation))),
    )


def snapshot(keys: Keys, version: int, token: int, value: bytes) -> Transaction:
    """Replace what is up to a version by its snapshot, and delete the versions right below it. Older ones are garbage
    from then on.
    """
    return Transaction(
        (
            Compare(keys.snapshot, Relation.LESS, number(version)),
            Compare(keys.token, Relation.LESS, number(token + 1)),
            Compare(keys.version, Relation.GREATER, number(version)),
        ),
        (
            Put(keys.snapshot, number(version)),
            Put(keys.token, number(token)),
            Put(keys.update(version), value),
            # The end of the range excludes the version itself: etcd refuses to put and delete a key at once.
            DeleteRange(keys.update(max(0, version - AT_ONCE)), keys.update(version)),
        ),
    )


def step_over(keys: Keys, version: int, unreadable: bytes, value: bytes) -> Transaction:
    """Replace the value of a version, unless it is another one than was read."""
    return Transaction(
        (Compare(keys.update(version), Relation.EQUAL, unreadable),), (Put(keys.update(version), value),)
    )


def claim(keys: Keys, largest: int, token: int) -> Transaction:
    """Make `token` the largest one, unless `largest` is not that any longer: so two claims never have the same."""
    return Transaction(
        (Compare(keys.token, Relation.EQUAL, number(largest)),),
        (Put(keys.token, number(token)),),
    )


def oldest_garbage(keys: Keys, version: int) -> Get:
    """The first key below a snapshot's version."""
    return Get(keys.updates[0], keys.update(version), limit=1, keys_only=True)


def sweep(keys: Keys, start: int, end: int) -> Transaction:
    """Delete versions from `start` up to and without `end`, which the snapshot has replaced."""
    return Transaction(
        (Compare(keys.snapshot, Relation.GREATER, number(end - 1)),),
        (DeleteRange(keys.update(start), keys.update(end)),),
    )
