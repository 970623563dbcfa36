"""Block stores: an index and objects; statements, commits and requests may fail (`crash.mortal_worker`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import patch

from compaction.blocks.index.live_blocks import BlockFilter
from compaction.blocks.model import block_path, tenant_of_target
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep import orphan_collector
from compaction.storage.secrets import Secrets
from conformance.harness import Calls, Fault, Strike
from crash.mortal_worker import Mortal
from support.blocks.block_stores import check, content, fill
from support.blocks.blocks import orphans, paths, reference_of, secrets_of
from support.faults import store_faults
from support.faults.store_faults import Death, When
from support.timing import each_call, one_of_each

SOURCES: Final = 3
FAULTS: Final = {Fault.DEATH: store_faults.Fault.DEATH, Fault.LOST: store_faults.Fault.LOST}


class BlockHarness:
    """Implements `Harness`. Target `number` is the batch of a tenant with three blocks."""

    death: type[BaseException] = Death
    charged = False
    shares_outputs = False
    indivisible = False

    def __init__(self, connection: BlockStoreConnection, books: BlockStore) -> None:
        """`books`: the store, by connections of its own. Of a store on servers a short run tries each call once, of one
        in a folder each after each other.
        """
        self.books = books
        self.local = connection.url.startswith("file://")
        self.secrets: Secrets = secrets_of(connection)
        level = {"maxBlocks": SOURCES, "maxAge": "1000h"}
        reference = reference_of(connection).to_object()
        self.store: dict[str, Any] = {"blockStore": {**reference, "levels": [level], "span": "1000h"}}

    def fill(self, number: int) -> None:
        fill(self.books, range(SOURCES * number, SOURCES * (number + 1)), tenant=f"tenant-{number}")

    def content(self, number: int) -> object:
        return content(self.books, BlockFilter(tenant=f"tenant-{number}"))

    def opens(self, target: str, source: str) -> bool:
        return block_path(tenant_of_target(target), 0, source) in paths(self.books)

    def damage(self, target: str, source: str) -> Callable[[], object]:
        path, objects = block_path(tenant_of_target(target), 0, source), self.books.objects
        sound = objects.get(path)
        objects.put(path, sound[:-7])
        return lambda: objects.put(path, sound)

    def leftovers(self) -> set[str]:
        return set(orphans(self.books))

    def replaced(self) -> set[str]:
        return paths(self.books) - self.leftovers() - {block.path for block in self.books.live().blocks}

    def check(self) -> None:
        check(self.books.index)

    def strikes(self, calls: list[str], fault: Fault) -> Sequence[Strike]:
        """Before a call all is as it was after the last one."""
        chosen = each_call(calls) if self.local else one_of_each(range(len(calls)), calls.__getitem__)
        if fault is Fault.LOST:
            return [Strike(at, When.AFTER.value, calls[at], fault) for at in chosen]
        last = Strike(len(calls) - 1, When.AFTER.value, calls[-1], fault)
        return [*(Strike(at, When.BEFORE.value, calls[at], fault) for at in chosen), last]

    @contextmanager
    def struck(self, strike: Strike | None) -> Iterator[Calls]:
        opened, mortal = BlockStore.open, Mortal(self.books.index)
        if strike is not None:
            mortal.at, mortal.when, mortal.fault = strike.at, When(strike.when), FAULTS[strike.fault]
        with ExitStack() as stack:

            def open_mortal(*arguments: Any, **options: Any) -> BlockStore:
                store = opened(*arguments, **options)
                mortal.database = store.index  # of this attempt alone
                stack.enter_context(mortal)
                return store

            stack.enter_context(patch.object(BlockStore, "open", open_mortal))
            yield mortal

    def survives(self, strike: Strike) -> bool:
        """Nobody even notices an answer of the index that is lost; one of the objects may end the attempt."""
        return not strike.name.startswith("objects")

    def later(self) -> AbstractContextManager[object]:
        month = timedelta(days=30)
        return patch.object(orphan_collector, "_store_now", lambda objects: datetime.now(UTC) + month)
