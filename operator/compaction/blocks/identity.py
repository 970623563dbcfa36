"""Which index belongs to which store: the same word is in the index and in an object beside the blocks.

Without it, an index of another store, or a new and empty one after the database was lost, knows none of the objects,
and an orphan collector would delete all of them. So a store is opened only with the index that it was created with.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, delete, select, update
from ulid import ULID

from compaction.blocks.errors import IndexMismatchError
from compaction.blocks.index.engine import IndexChange, IndexDatabase, head_version
from compaction.blocks.index.schema import ensure_schema
from compaction.blocks.index.tables import HEAD, METADATA
from compaction.blocks.owners import IDENTITY_PATH, FolderOwners
from compaction.storage.errors import ObjectExistsError, ObjectMissingError
from compaction.storage.objects.store import ObjectStorage

_LONGEST: Final = 100
_AFTER: Final = "-after-"
"""In the identity of a rebuilt index: the index that it replaced."""
_WORD: Final = 26


def bind(objects: ObjectStorage, index: IndexDatabase) -> str:
    """Make both sides of a new store, or check those of one that exists; returns the identity.

    The index is first: a store without an identity gets that of an index in which nothing was ever changed, so a crash
    in between is repaired by the next call, and nothing else is ever bound.

    Raises:
        IndexMismatchError: they do not belong together, or one of both was lost.
        ForeignFileError: a new store would lie inside another one, or in the folder of a table.
        DatabaseSchemaError, DatabaseUnavailableError, DatabaseError, ObjectError
    """
    ours = ensure_schema(index, identity=str(ULID()))
    theirs = read_identity(objects)
    if theirs is None:
        if index.read(head_version) != 0:
            raise IndexMismatchError(
                objects.url,
                index.name,
                f"the index has blocks, and there is no object {IDENTITY_PATH} in the store: correct the URL of one of "
                f"both; if the object was deleted, write it again with the text {ours}",
            )
        # A merge of the inner store would delete what is live in the outer one.
        FolderOwners(objects).refuse_new_store()
        theirs = _write(objects, ours)
    if theirs != ours:
        empty = index.read(head_version) == 0
        advice = (
            "restore the database, or make the index from the blocks with `compactor blocks rebuild-index`"
            if empty
            else "correct the URL of one of both"
        )
        what = "the index is new and the store is not" if empty else "the index is that of another store"
        raise IndexMismatchError(objects.url, index.name, f"{what}: {advice}")
    return ours


def begin_anew(objects: ObjectStorage, index: IndexDatabase) -> str:
    """Take an empty index for a store whose own was lost; returns the word for `finish_anew`. Until then store and
    index do not belong together, so a half-built index is never used. What an earlier call left in it is taken
    out.

    Raises:
        IndexMismatchError: the index is in use, of this store or of another: one that exists is never replaced.
        ForeignFileError: see `bind`.
        DatabaseSchemaError, DatabaseUnavailableError, DatabaseError, ObjectError
    """
    theirs = read_identity(objects)
    if theirs is None:
        FolderOwners(objects).refuse_new_store()
        theirs = _write(objects, str(ULID()))
    suffix = f"{_AFTER}{theirs[:_WORD]}"
    word = f"{ULID()}{suffix}"
    ours = ensure_schema(index, identity=word)
    if ours == theirs:
        reason = "the index is the one of this store: it is not lost. To rebuild it, stop everything that uses it and "
        raise IndexMismatchError(objects.url, index.name, f"{reason}name an empty database")
    if not ours.endswith(suffix) and index.read(head_version) != 0:
        reason = "the index is not empty, and not of this store: name an empty database"
        raise IndexMismatchError(objects.url, index.name, reason)
    index.change(lambda change: _empty(change, word))
    return word


def finish_anew(objects: ObjectStorage, index: IndexDatabase, word: str) -> None:
    """From now on the store is opened with this index, and with no other: not with the one that was lost either, should
    it come back. Repeating is harmless. Raises IndexMismatchError: another process has started to rebuild it since.
    """
    if index.read(_identity_of) != word:
        raise IndexMismatchError(objects.url, index.name, "another process has started to rebuild the same index")
    index.change(_begin_history)
    objects.put(IDENTITY_PATH, word.encode())


def _begin_history(change: IndexChange) -> None:
    """No reader goes on at an earlier version: those of the lost index were other states, those of this one parts."""
    change.connection.execute(update(HEAD).values(forgotten=change.version))


def _identity_of(connection: Connection) -> str:
    return str(connection.execute(select(HEAD.c.identity)).scalar_one())


def _empty(change: IndexChange, word: str) -> None:
    for table in METADATA.sorted_tables:
        if table is not HEAD:
            change.connection.execute(delete(table))
    change.connection.execute(update(HEAD).values(identity=word))


def read_identity(objects: ObjectStorage) -> str | None:
    """What the store says; None when it says nothing. Raises IndexMismatchError for an object that is no identity."""
    try:
        data = objects.get(IDENTITY_PATH)
    except ObjectMissingError:
        return None
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > _LONGEST:
        raise IndexMismatchError(
            objects.url,
            "its index",
            f"the object {IDENTITY_PATH} is damaged: restore it, or delete it and rebuild the index",
        )
    return text


def _write(objects: ObjectStorage, identity: str) -> str:
    """The identity that the store has from now on: this one, or that of the process that came first."""
    try:
        objects.put(IDENTITY_PATH, identity.encode(), if_absent=True)
    except ObjectExistsError:
        return read_identity(objects) or identity
    return identity
