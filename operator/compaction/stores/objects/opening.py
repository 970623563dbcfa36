"""From a URL and options to a store. What is secret is in the options only, and in no message."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import obstore.store
from obstore.exceptions import BaseError

from compaction.exceptions import ObjectStoreUrlError
from compaction.stores.objects.errors import Store

REMOTE: Final = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"})
CLIENT: Final = frozenset(
    {"allow_http", "connect_timeout", "read_timeout", "timeout", "proxy_url", "proxy_excludes", "root_certificate"}
)
"""Options of the connection; all others are the store's own."""
TIMES: Final = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "15m"}
"""A server that falls silent is noticed by `read_timeout`; a large object may take longer than that altogether."""
BULK_RETRIES: Final = 5


@dataclass(frozen=True, slots=True)
class StorageConnection:
    """A store of obstore: `store` never retries by itself, `bulk` does (parts of uploads). `folder`: a local one.
    `root`: its path below the top of the bucket, or of the file system; `top` opens all of a bucket of which it is a
    part.
    """

    url: str
    kind: Store
    store: Any
    bulk: Any
    folder: Path | None = None
    root: str = ""
    top: Callable[[], StorageConnection] | None = None


def connect(url: str, options: Mapping[str, str]) -> StorageConnection:
    """See `open_objects`. Raises ObjectStoreUrlError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme in {"", "file"}:
        return _open_folder(url, parts, options)
    if parts.scheme not in REMOTE:
        raise ObjectStoreUrlError(f"{parts.scheme}: no such kind of object store; use s3, gs, az, file or a folder")
    if "@" in parts.netloc and parts.scheme not in {"abfs", "abfss"}:
        raise ObjectStoreUrlError(f"a URL of {parts.scheme} holds no credentials: put them into the options")
    if not parts.netloc or parts.query or parts.fragment:
        raise ObjectStoreUrlError(f"a URL of {parts.scheme} names a bucket and a prefix, nothing else")
    client: dict[str, Any] = {**TIMES, **{name: options[name] for name in options.keys() & CLIENT}}
    client["allow_http"] = str(client.get("allow_http", "false")).lower() == "true"
    config = {name: value for name, value in options.items() if name not in CLIENT}
    make: Any = obstore.store.from_url
    try:
        store, bulk = (
            make(url, config=config, client_options=client, retry_config={"max_retries": retries})
            for retries in (0, BULK_RETRIES)
        )
    except (BaseError, ValueError, TypeError) as error:
        known = next((name for name in options if f"'{name}'" in str(error)), "")
        reason = f"option {known!r} is not one of this store" if known else "its options do not fit together"
        raise ObjectStoreUrlError(f"{parts.scheme}://{parts.netloc}{parts.path}: {reason}") from None
    root = urllib.parse.unquote(parts.path).strip("/")
    top = partial(connect, f"{parts.scheme}://{parts.netloc}", options) if root else None
    return StorageConnection(url, Store.REMOTE, store, bulk, root=root, top=top)


def _open_folder(url: str, parts: urllib.parse.SplitResult, options: Mapping[str, str]) -> StorageConnection:
    if options:
        raise ObjectStoreUrlError(f"{url}: a folder has no options ({', '.join(sorted(options))})")
    if parts.netloc:
        raise ObjectStoreUrlError(f"{url}: a folder is file:///path, with nothing between the second and third slash")
    folder = Path(urllib.parse.unquote(parts.path) if parts.scheme else url).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        store = obstore.store.LocalStore(folder)
    except (BaseError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ObjectStoreUrlError(f"{folder}: cannot be used as an object store: {reason}") from None
    return StorageConnection(str(folder), Store.FOLDER, store, store, folder, root=str(folder).strip("/"))
