"""From a URL and options to a store, and its errors in our words. What is secret is in the options only."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import obstore.store
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from compaction.storage.errors import (
    ObjectAccessError,
    ObjectChangedError,
    ObjectError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectRefusedError,
    ObjectStoreUnavailableError,
    ObjectStoreUrlError,
    ObjectTruncatedError,
)

# Failures of operations on an object, in our words.
#
# The libraries below quote requests and answers in their errors, and those may hold an access key or a signed URL. So
# nothing of a text is passed on but the HTTP status and the store's error code, and the original is never chained.

FAILURES: Final = (BaseError, OSError, ValueError)
"""All that obstore raises."""

_STATUS: Final = re.compile(r"status(?: code)?:? (\d{3})|\b(\d{3}) (?:Service|Internal|Bad|Gateway|Too|Slow|Request)")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_SYSTEM: Final = re.compile(r'code: (\d+),\s+kind: ([A-Za-z]+),\s+message: "([A-Za-z ,/-]{1,80})"')
_RANGE: Final = re.compile(r"StartTooLarge|InvalidRange|range was invalid|RequestedRangeNotSatisfiable|status: 416")
_REGIONS: Final = ("incorrectly configured region", "IllegalLocationConstraintException", "<Region>")
"""What S3, and the library of a redirect that names no place, say to a request that was signed for another region."""
_REGION: Final = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")
_NO_PLACE: Final = {"NoSuchBucket", "InvalidBucketName"}
_NO_ACCESS: Final = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "ExpiredToken", "InvalidToken"}
_CAUSES: Final = {
    "ConnectionRefused": "connection refused",
    "dns error": "no such host",
    "TimedOut": "timeout",
    "NetworkUnreachable": "network unreachable",
    "HostUnreachable": "host unreachable",
    "InvalidCertificate(NotValidForName": "its certificate is of another host",
    "InvalidCertificate(Expired": "its certificate has expired",
    "InvalidCertificate": "its certificate is of an authority that is not trusted here: name the authority in "
    "caBundle, or in a file that SSL_CERT_FILE names",
    "InvalidContentType": "the server does not speak TLS",
    "Parse(": "the server does not speak HTTP",
    "IncompleteMessage": "connection closed",
}
"""What stands in the text of an error without any answer, and what it means."""
_AGAIN: Final = {
    "SlowDown",
    "RequestTimeout",
    "InternalError",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
}


class Store(Enum):
    """Of which kind the store is."""

    FOLDER = "folder"
    """Errors are those of the operating system; repeating the call would not help."""
    REMOTE = "remote"


def translate(error: Exception, path: str, store: Store) -> ObjectError:
    """The error of ours for one of `FAILURES`. Nothing secret is in it."""
    text = str(error)
    code = found[1] if (found := _CODE.search(text)) else ""
    status = int(next(filter(None, found.groups()))) if (found := _STATUS.search(text)) else 0
    if any(mark in text for mark in _REGIONS):
        place = f", which is in {found[1]}" if (found := _REGION.search(text)) else ""
        return ObjectAccessError(path, f"the region is not that of the bucket{place}")
    if code in _NO_PLACE:
        return ObjectAccessError(path, f"the bucket cannot be used ({code})")
    if isinstance(error, FileNotFoundError):
        return ObjectMissingError(path, "there is no such object")
    if isinstance(error, AlreadyExistsError):
        return ObjectExistsError(path, "there is an object of this name already")
    if isinstance(error, PreconditionError):
        return ObjectChangedError(path, "was replaced while it was read")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or code in _NO_ACCESS or status in {401, 403}:
        return ObjectAccessError(path, f"access denied ({code or status or 'permission'})")
    if _RANGE.search(text):
        return ObjectTruncatedError(path, "ends before the bytes that were asked for")
    if isinstance(error, ValueError | NotSupportedError):
        return ObjectRefusedError(path, "the store cannot do this")
    if store is Store.FOLDER:
        system = _SYSTEM.search(text)
        if system and system[2] == "NotADirectory":
            return ObjectMissingError(path, "there is no such object")
        kind = f"{system[3]} (error {system[1]})" if system else type(error).__name__
        return ObjectStoreUnavailableError(path, f"the folder refused: {kind}")
    if 400 <= status < 500 and status not in {408, 409, 425, 429} and code not in _AGAIN:
        return ObjectRefusedError(path, f"the store refused ({' '.join(filter(None, (str(status), code)))})")
    answer = " ".join(filter(None, (str(status or ""), code)))
    if answer:
        return ObjectStoreUnavailableError(path, f"the store answered {answer}")
    cause = next((f" ({cause})" for mark, cause in _CAUSES.items() if mark in text), "")
    return ObjectStoreUnavailableError(path, f"the store gave no usable answer{cause}")


# From a URL and options to a store. What is secret is in the options only, and in no message.

REMOTE: Final = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"})
CLIENT: Final = frozenset(
    {"allow_http", "connect_timeout", "read_timeout", "timeout", "proxy_url", "proxy_excludes", "root_certificate"}
)
"""Options of the connection; all others are the store's own."""
TIMES: Final = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "15m"}
"""A server that falls silent is noticed by `read_timeout`; a large object may take longer than that altogether."""
BULK_RETRIES: Final = 5
CLIENTS: Final = 64
"""That are kept, each with the options that it was made of and a few idle connections."""
_NO_AUTHORITIES: Final = "No CA certificates were loaded"
_INNERMOST: Final = re.compile(r"source: (.+),$", re.MULTILINE)
"""The cause of a cause in what Rust prints of an error; the last one is the innermost."""
PUBLIC_AZURE: Final = "blob.core.windows.net"
LOCAL_PATH: Final = "local_path"
"""Option of a URL local://...: the folder that it is below."""


@dataclass(frozen=True, slots=True)
class StorageConnection:
    """A store of obstore: `store` never retries by itself, what `bulk` opens does (parts of uploads). `folder`: a local
    one. `root`: its path below the top of the bucket, or of the file system; `top` opens all of a bucket of which it is
    a part.
    """

    url: str
    kind: Store
    store: Any
    bulk: Callable[[], Any]
    folder: Path | None = None
    root: str = ""
    top: Callable[[], StorageConnection] | None = None


def connect(url: str, options: Mapping[str, str]) -> StorageConnection:
    """See `open_objects`. Raises ObjectStoreUrlError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "local":
        return _open_local(url, parts, options)
    if parts.scheme in {"", "file"}:
        return _open_folder(url, parts, options)
    if parts.scheme == "https":
        url, options = _azure(url, parts, options)
        parts = urllib.parse.urlsplit(url)
    if parts.scheme not in REMOTE:
        raise ObjectStoreUrlError(f"{parts.scheme}: no such kind of object store; use s3, gs, az, file or a folder")
    if "@" in parts.netloc and parts.scheme not in {"abfs", "abfss"}:
        raise ObjectStoreUrlError(f"a URL of {parts.scheme} holds no credentials: put them into the options")
    if not parts.netloc or parts.query or parts.fragment:
        raise ObjectStoreUrlError(f"a URL of {parts.scheme} names a bucket and a prefix, nothing else")
    make = partial(_client, os.getpid(), url, frozenset(options.items()))
    try:
        store = make(0)
    except (BaseError, ValueError, TypeError) as error:
        raise ObjectStoreUrlError(f"{parts.scheme}://{parts.netloc}{parts.path}: {_why(error, options)}") from None
    root = urllib.parse.unquote(parts.path).strip("/")
    top = partial(connect, f"{parts.scheme}://{parts.netloc}", options) if root else None
    return StorageConnection(url, Store.REMOTE, store, partial(make, BULK_RETRIES), root=root, top=top)


@lru_cache(maxsize=CLIENTS)
def _client(process: int, url: str, options: frozenset[tuple[str, str]], retries: int) -> Any:
    """One for all who open the same store: each client reads the certificates of the machine, which takes four
    milliseconds of a processor, and has connections of its own. Threads of a client do not survive a fork, so
    the `process` is part of what makes it.
    """
    client: dict[str, Any] = {**TIMES, **{name: value for name, value in options if name in CLIENT}}
    client["allow_http"] = str(client.get("allow_http", "false")).lower() == "true"
    config = {name: value for name, value in options if name not in CLIENT}
    opened: Any = obstore.store.from_url
    return opened(url, config=config, client_options=client, retry_config={"max_retries": retries})


def _why(error: Exception, options: Mapping[str, str]) -> str:
    """The cause in words of the library, unless it quotes the value of an option: then the name alone."""
    text = str(error)
    if _NO_AUTHORITIES in text:
        return (
            "no certificates of authorities are installed here: install the package ca-certificates, or name a file of "
            "them in SSL_CERT_FILE or in caBundle"
        )
    if "root_certificate" in text:
        return "option 'root_certificate' holds no certificates in PEM (-----BEGIN CERTIFICATE-----)"
    if known := next((name for name in options if f"'{name}'" in text), ""):
        return f"option {known!r} is not one of this store"
    cause = text.partition("\n")[0].rpartition(" error: ")[2]
    if cause == "builder error" and (innermost := _INNERMOST.findall(text)):
        cause = innermost[-1]
    if quoted := next((name for name, value in options.items() if value and value in cause), ""):
        return f"the value of option {quoted!r} cannot be used"
    return f"its options do not fit together: {cause}"


def _azure(url: str, parts: urllib.parse.SplitResult, options: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """The URL of Azure's own tools, and of lakeFS: https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX."""
    account, _, domain = (parts.hostname or "").partition(".")
    container, _, prefix = parts.path.strip("/").partition("/")
    if not domain.startswith(("blob.core.", "dfs.core.")) or not account or not container or parts.query:
        raise ObjectStoreUrlError(
            f"{parts.scheme}://{parts.hostname}: no such kind of object store; use s3, gs, az, file or a folder, or "
            "https://ACCOUNT.blob.core.windows.net/CONTAINER"
        )
    found = {"account_name": account, **options}
    if domain != PUBLIC_AZURE:
        found.setdefault("endpoint", f"https://{parts.netloc}")
    return f"az://{container}/{prefix}".rstrip("/"), found


def _open_local(url: str, parts: urllib.parse.SplitResult, options: Mapping[str, str]) -> StorageConnection:
    """A namespace of a lakeFS with the block store `local`, whose folder no URL names."""
    root = options.get(LOCAL_PATH, "")
    below = f"{parts.netloc}{parts.path}".strip("/")
    if not root or ".." in Path(below).parts:
        raise ObjectStoreUrlError(
            f"{url}: a folder of lakeFS servers with the block store local; set the option {LOCAL_PATH} to their "
            "blockstore.local.path, as it is mounted here"
        )
    folder = Path(root).expanduser() / below
    rest = {name: value for name, value in options.items() if name != LOCAL_PATH}
    return _open_folder(str(folder), urllib.parse.urlsplit(str(folder)), rest)


def _open_folder(url: str, parts: urllib.parse.SplitResult, options: Mapping[str, str]) -> StorageConnection:
    if options:
        # Their names are those of a Secret, which may be anybody's.
        raise ObjectStoreUrlError(f"{url}: a folder has no options: name no credentials and no caBundle for it")
    if parts.netloc:
        raise ObjectStoreUrlError(f"{url}: a folder is file:///path, with nothing between the second and third slash")
    folder = Path(urllib.parse.unquote(parts.path) if parts.scheme else url).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        store = obstore.store.LocalStore(folder)
    except (BaseError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ObjectStoreUrlError(f"{folder}: cannot be used as an object store: {reason}") from None
    return StorageConnection(str(folder), Store.FOLDER, store, lambda: store, folder, root=str(folder).strip("/"))
