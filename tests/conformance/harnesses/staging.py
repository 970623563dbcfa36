"""Staging areas: a key-value store and objects, each of whose calls may fail (`support.faults.store_faults`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from compaction.staging import adapter
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import Brancher, seal
from compaction.staging.flows.reading import Reader
from compaction.staging.flows.writing import Writer
from compaction.staging.store import StagingConnection, StagingStore
from compaction.staging.sweep import journal_rows, reachable
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.errors import DatabaseUnavailableError, ObjectStoreUnavailableError
from compaction.storage.objects.store import ObjectStorage
from compaction.storage.secrets import GivenSecrets, Secrets
from compaction.worker.tasks import ObjectsPlace
from conformance.harness import Calls, Fault, Strike
from support.faults.store_faults import KV_CALLS, OBJECT_CALLS, Fate, Killed, Moment
from support.staging.staging_repos import framed
from support.timing import one_of_each

MONTH: Final = 30 * 86_400.0
FAULTS: Final = {"before": Moment.BEFORE, "after": Moment.AFTER}


class StagingHarness:
    """Implements `Harness`. Target `number` is a branch with two sealed tokens and changes in its staging token."""

    death: type[BaseException] = Killed
    charged = False
    shares_outputs = True
    indivisible = True

    def __init__(self, connection: StagingConnection, namespace: str) -> None:
        self.books = StagingStore.open(connection)
        self.area = self.books.create("example", namespace, committer="tester")
        self.secrets: Secrets = GivenSecrets(
            {"kv": {"url": connection.kv_url}, "credentials": dict(connection.options)}, "the test"
        )
        self.store: dict[str, Any] = {
            "stagingArea": {
                "repository": "example",
                "kv": {"secretName": "kv"},
                "credentialsSecretName": "credentials",
                "thresholds": {"sealedTokens": 1},
            }
        }

    def close(self) -> None:
        self.books.close()

    def fill(self, number: int) -> None:
        name, writer = f"branch-{number}", Writer(self.area)
        Brancher(self.area).create(name, "main")
        for layer in range(3):
            for key in range(12):
                writer.set(name, b"%d/%d" % (layer, key), framed(f"{number}.{layer}.{key}"))
            writer.delete(name, b"0/%d" % layer)
            if layer < 2:
                seal(self.area, name)
        self.area.counters.flush()

    def content(self, number: int) -> object:
        page = Reader(self.area).list(f"branch-{number}")
        return [(entry.key, entry.value) for entry in page.entries]

    def opens(self, target: str, source: str) -> bool:
        return self.area.ranges.exists(source) if len(source) == 64 else self.area.tokens.has_rows(source)

    def damage(self, target: str, source: str) -> Callable[[], object]:
        key, sound = next(iter(self.area.kv.scan(source)))[0]
        self.area.kv.set(source, key, sound[:-3])
        return lambda: self.area.kv.set(source, key, sound)

    def leftovers(self) -> set[str]:
        return {item.path for item in self.area.ranges.stored()} - reachable(self.area)

    def replaced(self) -> set[str]:
        used = {token for branch in self.area.branches.every() for token in branch.record.tokens}
        return {row.entry.token for row in journal_rows(self.area)} - used

    def check(self) -> None:
        for branch in self.area.branches.every():
            self.area.ranges.check(branch.record.compacted_base)

    def strikes(self, calls: list[str], fault: Fault) -> Sequence[Strike]:
        chosen = one_of_each(range(len(calls)), calls.__getitem__)
        if fault is Fault.LOST:
            return [Strike(at, "after", calls[at], fault) for at in chosen]
        last = Strike(len(calls) - 1, "after", calls[-1], fault)
        return [*(Strike(at, "before", calls[at], fault) for at in chosen), last]

    @contextmanager
    def struck(self, strike: Strike | None) -> Iterator[Calls]:
        fate = Fate()
        if strike is not None:
            lost = _unavailable if strike.fault is Fault.LOST else None
            fate = Fate(strike.at, FAULTS[strike.when], lost=lost)
        opened, placed = StagingStore.area, ObjectsPlace.open

        def open_mortal(store: StagingStore, name: str) -> Area:
            area = opened(store, name)
            kv: Any = fate.guard(area.kv, KV_CALLS)
            ranges = RangeStorage(fate.guard(area.ranges.objects, OBJECT_CALLS))
            return Area.of(area.repository, kv, ranges, area.counters)

        def open_place(place: ObjectsPlace) -> ObjectStorage:
            guarded: ObjectStorage = fate.guard(placed(place), OBJECT_CALLS)
            return guarded

        with ExitStack() as stack:
            stack.enter_context(patch.object(StagingStore, "area", open_mortal))
            stack.enter_context(patch.object(ObjectsPlace, "open", open_place))
            yield fate

    def survives(self, strike: Strike) -> bool:
        """An answer to the swap of the branch is asked for again."""
        return strike.name == "set_if"

    def later(self) -> AbstractContextManager[object]:
        return patch.object(adapter, "_wall", lambda: time.time() + MONTH)


def _unavailable(name: str) -> Exception:
    if name in OBJECT_CALLS and name not in KV_CALLS:
        return ObjectStoreUnavailableError("object", "no answer, as the test wants it")
    return DatabaseUnavailableError("key-value store", "gives no answer, as the test wants it")
