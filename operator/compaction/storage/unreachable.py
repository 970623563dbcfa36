"""Errors of a store or an index that cannot be reached, with what their raiser does not know: the URL, the endpoint,
and where both are written.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from compaction.storage.errors import (
    DatabaseLoginError,
    DatabaseUnreachableError,
    ObjectAccessError,
    ObjectStoreUnavailableError,
)

_OWN_FOLDER: Final = "_compaction/"
"""Users do not know the objects in it: what is wrong with one of them is wrong with the store."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is, and where that is written: `url` and `options` of its objects (the latter never show), and
    `options_from` and `database_from`, such as `Secret index`.
    """

    url: str
    options: Mapping[str, str] = field(repr=False)
    options_from: str
    database_from: str


@contextmanager
def explaining(address: StoreAddress) -> Iterator[None]:
    """Errors of objects or of a database that cannot be reached say what to check, and where. Not to be nested."""
    try:
        yield
    except (ObjectStoreUnavailableError, ObjectAccessError) as error:
        raise type(error)(_place(address, error.path), _advice(address, error)) from None
    except (DatabaseUnreachableError, DatabaseLoginError) as error:
        check = f" Check the URL in {address.database_from}." if address.database_from else ""
        raise type(error)(error.database, error.reason + check) from None


def _place(address: StoreAddress, path: str) -> str:
    """The object, or the store when the path is its own business."""
    known = not path or path == address.url or path.startswith(_OWN_FOLDER)
    return address.url if known else f"{address.url.rstrip('/')}/{path}"


def _advice(address: StoreAddress, error: ObjectStoreUnavailableError | ObjectAccessError) -> str:
    """The reason with the server's address in it, and what to check."""
    origin = address.options_from
    if urllib.parse.urlsplit(address.url).scheme in {"", "file"}:
        return f"{error.reason}. Check the folder and its permissions."
    if isinstance(error, ObjectAccessError):
        if error.reason.startswith("the region"):
            where = f'"region" in {origin}' if origin else "the region"
            return f"{error.reason}. Correct {where}."
        if error.reason.startswith("the bucket"):
            return f"{error.reason}. Create it or correct the URL."
        return f"{error.reason}. Check {f'the keys in {origin}' if origin else 'the identity'} and the bucket policy."
    option, server = _endpoint(address)
    where = f'"{option}" in {origin} and ' if origin else ""
    return f"{error.reason.replace('the store', server, 1)}. Check {where}the network."


def _endpoint(address: StoreAddress) -> tuple[str, str]:
    """The name of the option, and the address in it: scheme, host and port, because the rest may be a secret."""
    for option, value in address.options.items():
        if option.lower().endswith(("endpoint", "endpoint_url")):
            try:
                parts = urllib.parse.urlsplit(value)
                port = f":{parts.port}" if parts.port else ""
            except ValueError:
                return option, "the store"
            host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
            return option, f"{parts.scheme}://{host}{port}" if host else "the store"
    return "endpoint", "the store"
