"""Errors of a store or an index that cannot be reached, with what their raiser does not know: the URL, the endpoint,
and where both are written.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from compaction.exceptions import (
    DatabaseLoginError,
    DatabaseUnreachableError,
    ObjectAccessError,
    ObjectStoreUnavailableError,
)
from compaction.stores.blocks.store import BlockStoreConnection

_OWN_FOLDER: Final = "_compaction/"
"""Users do not know the objects in it: what is wrong with one of them is wrong with the store."""


@contextmanager
def explaining(connection: BlockStoreConnection) -> Iterator[None]:
    """Errors of a store or of an index that cannot be reached say what to check, and where. Not to be nested."""
    try:
        yield
    except (ObjectStoreUnavailableError, ObjectAccessError) as error:
        raise type(error)(_place(connection, error.path), _advice(connection, error)) from None
    except (DatabaseUnreachableError, DatabaseLoginError) as error:
        check = f" Check the URL in {connection.index_from}." if connection.index_from else ""
        raise type(error)(error.database, error.reason + check) from None


def _place(connection: BlockStoreConnection, path: str) -> str:
    """The object, or the store when the path is its own business."""
    known = not path or path == connection.url or path.startswith(_OWN_FOLDER)
    return connection.url if known else f"{connection.url.rstrip('/')}/{path}"


def _advice(connection: BlockStoreConnection, error: ObjectStoreUnavailableError | ObjectAccessError) -> str:
    """The reason with the server's address in it, and what to check."""
    origin = connection.options_from
    if urllib.parse.urlsplit(connection.url).scheme in {"", "file"}:
        return f"{error.reason}. Check the folder and its permissions."
    if isinstance(error, ObjectAccessError):
        if error.reason.startswith("the bucket"):
            return f"{error.reason}. Create it or correct the URL."
        return f"{error.reason}. Check {f'the keys in {origin}' if origin else 'the identity'} and the bucket policy."
    option, address = _endpoint(connection)
    where = f'"{option}" in {origin} and ' if origin else ""
    return f"{error.reason.replace('the store', address, 1)}. Check {where}the network."


def _endpoint(connection: BlockStoreConnection) -> tuple[str, str]:
    """The name of the option, and the address in it: scheme, host and port, because the rest may be a secret."""
    for option, value in connection.options.items():
        if option.lower().endswith(("endpoint", "endpoint_url")):
            try:
                parts = urllib.parse.urlsplit(value)
                port = f":{parts.port}" if parts.port else ""
            except ValueError:
                return option, "the store"
            host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
            return option, f"{parts.scheme}://{host}{port}" if host else "the store"
    return "endpoint", "the store"
