"""The update log in etcd: appends beside bare transactions of the same bytes, recoveries beside a plain reading
of the same keys.

etcd is one member that syncs to disk, reached over TLS with a client certificate; both sides use the same client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from bench.harness import Curve, Fact, Race, Side, Workspace, least_ratio, sample
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Compare, Get, Operation, Put, Relation, Transaction
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.layout import PRODUCT, Keys, Stored, encoded, last, number
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.log.watching import FIRST_PAGE, MOST_KEYS
from compaction.catalogs.model.descriptors import hybrid, later
from compaction.catalogs.model.entries import AlterTablePropertiesEntry, RenameTableEntry, Snapshot, VersionedUpdate
from compaction.local.programs.binaries import ensure_binaries
from tools.servers.etcd import start_etcd

DELAY = 500
AT_ONCE = 60
"""Versions in one transaction where a log is filled past its own appends."""
STAMP = bytes(16)


def update(version: int) -> VersionedUpdate:
    """About as large as a change of DDL: 60 bytes."""
    entries = (
        RenameTableEntry(version % 200, f"ORDERS_OF_{version}"),
        AlterTablePropertiesEntry(version % 200, 0.2, 1_000),
    )
    return VersionedUpdate(version, DELAY, entries)


class Appends:
    """`ours`: versions of a log. `bare`: what a compare and swap of two keys costs without a log around it."""

    def __init__(self, client: GatewayClient, count: int) -> None:
        self.count = count
        self._log = EtcdUpdateLog(client, "/bench/appended")
        self._client, self._keys = client, Keys("/bench/bare")
        self._version = self._bare_version = 0
        self._value = encoded(Stored(update(1), hybrid(1), STAMP))
        assert self._log.claim(1)
        client.transaction(Transaction((), (Put(self._keys.version, number(0)),)))

    def ours(self) -> None:
        for version in range(self._version + 1, self._version + self.count + 1):
            assert self._log.append(update(version), hybrid(1_000 * version))
        self._version += self.count

    def bare(self) -> None:
        for version in range(self._bare_version + 1, self._bare_version + self.count + 1):
            unchanged = Compare(self._keys.version, Relation.EQUAL, number(version - 1))
            puts = (Put(self._keys.update(version), self._value), Put(self._keys.version, number(version)))
            assert self._client.transaction(Transaction((unchanged,), puts)).succeeded
        self._bare_version += self.count


def filled(client: GatewayClient, count: int) -> str:
    """The prefix of a log with so many versions."""
    keys = Keys(f"/bench/filled-{count}")
    numbers = (Put(keys.product, PRODUCT), Put(keys.snapshot, number(1)), Put(keys.token, number(0)))
    activation = later(hybrid(1_000 * count), DELAY)
    client.transaction(Transaction((), (*numbers, Put(keys.version, last(count, activation)))))
    for start in range(1, count + 1, AT_ONCE):
        puts: tuple[Operation, ...] = tuple(
            Put(keys.update(version), encoded(Stored(update(version), later(hybrid(1_000 * version), DELAY), STAMP)))
            for version in range(start, min(start + AT_ONCE, count + 1))
        )
        client.transaction(Transaction((), puts))
    return keys.prefix


def read(client: GatewayClient, prefix: str) -> int:
    """All values in pages of the same sizes, and nothing done with them."""
    start, end = Keys(prefix).updates
    found, limit = 0, FIRST_PAGE
    while True:
        page = client.range(Get(start, end, limit))
        found += len(page.pairs)
        if not page.more:
            return found
        start, limit = page.pairs[-1].key + b"\0", min(4 * limit, MOST_KEYS)


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """See the module."""
    count, rounds = workspace.pick((500, 7), (20, 1))
    sizes = workspace.sizes or workspace.pick((1_000, 10_000, 100_000), (50, 200))
    program = ensure_binaries().etcd
    with (
        start_etcd(workspace.directory / "etcd", program) as running,
        closing(GatewayClient(running.settings)) as client,
    ):
        appends = Appends(client, count)
        yield Race(
            f"{count} versions appended, one after the other",
            "versions",
            count,
            Side("the log", appends.ours),
            Side("bare transactions", appends.bare),
            least_ratio(0.8),
            rounds,
        )
        prefixes = {size: filled(client, size) for size in sizes}

        def recovery(size: int) -> Callable[[], object]:
            log = EtcdUpdateLog(client, prefixes[size])

            def run() -> None:
                assert log.recover().version == size

            return run

        def plain(size: int) -> Callable[[], object]:
            def run() -> None:
                assert read(client, prefixes[size]) == size

            return run

        yield Curve("recovery", "versions", sizes, recovery, "reading the keys", plain, sizes, 1.1)
        largest = max(sizes)
        value = encoded(Stored(update(largest), later(hybrid(1_000 * largest), DELAY), STAMP))
        yield Fact("bytes of a value", f"{len(value)}")
        log = EtcdUpdateLog(client, prefixes[largest])
        cut = largest - 10
        snapshot = Snapshot(cut, later(hybrid(1_000 * cut), DELAY), 1, (), (), None)

        def compact() -> None:
            assert log.save_snapshot(snapshot, 1) is SnapshotOutcome.SAVED

        yield _timed(f"{cut:,} versions cut by a snapshot", compact)


def _timed(title: str, run: Callable[[], object]) -> Fact:
    taken = sample(run)
    return Fact(title, f"{taken.wall:.2f} s ({taken.cpu:.2f} s CPU)")
