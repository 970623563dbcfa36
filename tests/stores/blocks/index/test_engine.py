"""Connections and what is tried again: a database that is away, busy or closed to us; and secrets stay secrets."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from compaction.blocks.index.live_blocks import live_blocks, streamed
from compaction.blocks.index.registering import register
from compaction.blocks.index.tables import IndexDatabase
from compaction.storage.errors import DatabaseUnavailableError
from support.stores.block_index import NOON, a_block, blocks_of


def test_a_change_waits_for_the_one_before_it(index: IndexDatabase) -> None:
    """And then sees what that one did."""
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        def body(change: object) -> None:
            entered.set()
            assert go_on.wait(30)

        index.change(body)

    first = threading.Thread(target=slow)
    first.start()
    assert entered.wait(30)
    before = live_blocks(index).version
    results: list[int] = []
    second = threading.Thread(target=lambda: results.append(index.change(lambda change: change.version)))
    second.start()
    second.join(0.3)
    assert results == []
    go_on.set()
    first.join()
    second.join()
    assert results == [before + 2]


def test_readers_do_not_wait_for_a_change_and_do_not_see_it(index: IndexDatabase) -> None:
    register(index, [a_block(1)], now=NOON)

    def body(change: object) -> int:
        register_inside = live_blocks(index)
        return len(register_inside.blocks)

    assert index.change(body) == 1


def test_a_reader_keeps_its_instant(index: IndexDatabase) -> None:
    register(index, blocks_of(*range(10)), now=NOON)
    with streamed(index) as (version, blocks):
        seen = [next(blocks)]
        register(index, blocks_of(*range(10, 20)), now=NOON)
        seen += blocks
    assert seen == blocks_of(*range(10))
    assert live_blocks(index).version == version + 1


def test_a_change_that_fails_changes_nothing(index: IndexDatabase) -> None:
    class SomethingElse(Exception):
        pass

    def body(change: object) -> None:
        raise SomethingElse

    before = live_blocks(index)
    with pytest.raises(SomethingElse):
        index.change(body)
    assert live_blocks(index) == before


def test_a_lock_that_is_never_given(tmp_path: Path, index_url: str) -> None:
    """Somebody stopped in the middle of a change (a debugger, a frozen machine): others are told, not hung."""
    holder, database = IndexDatabase.open(index_url), IndexDatabase.open(index_url, patience=0.5, lock_seconds=0.05)
    with holder.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            raw = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
            raw.execute("BEGIN IMMEDIATE")
        else:
            connection.execute(text("SELECT 1 FROM block_index FOR UPDATE"))
        with pytest.raises(DatabaseUnavailableError):
            register(database, [a_block(1)], now=NOON)
        if connection.dialect.name == "sqlite":
            raw.close()
    register(database, [a_block(1)], now=NOON)
    holder.close()
    database.close()
