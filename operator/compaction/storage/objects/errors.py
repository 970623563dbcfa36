"""What went wrong with an object, in our words.

The libraries below quote requests and answers in their errors, and those may hold an access key or a signed URL. So
nothing of a text is passed on but the HTTP status and the store's error code, and the original is never chained.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

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
    ObjectTruncatedError,
)

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
