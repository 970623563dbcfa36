"""What the answers of participants may be, and what each other one means."""

from __future__ import annotations

import aiohttp
from pydantic import ValidationError
from pydantic_core import from_json

from compaction.api.text.safe import cut, printable
from compaction.catalogs.errors import ParticipantError, ParticipantFailure
from compaction.catalogs.serving.messages import VERSION, ParticipantProblem, ParticipantProblemMessage
from compaction.serving.openapi import JSON

MOST_PROBLEM_BYTES = 4096
_LONGEST_DETAIL = 300
_BY_STATUS = {
    401: ParticipantFailure.UNAUTHORIZED,
    403: ParticipantFailure.UNAUTHORIZED,
    404: ParticipantFailure.WRONG_VERSION,
    410: ParticipantFailure.WRONG_VERSION,
}
_BY_CODE = {
    ParticipantProblem.STALE_TOKEN: ParticipantFailure.STALE_TOKEN,
    ParticipantProblem.MINIMUM_AHEAD: ParticipantFailure.MINIMUM_AHEAD,
}


def wrong_form(response: aiohttp.ClientResponse) -> str | None:
    """Why the body is not read at all."""
    if response.content_type != JSON:
        return f"Content-Type is {printable(cut(response.content_type, 100))}, not {JSON}"
    encoding = response.headers.get("Content-Encoding", "identity")
    return (
        None if encoding == "identity" else f"Content-Encoding is {printable(cut(encoding, 100))}: nothing unpacks it"
    )


async def whole(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body; None when it is longer than `most` bytes, of which no more are read."""
    if response.content_length is not None and response.content_length > most:
        return None
    found = bytearray()
    async for chunk in response.content.iter_any():
        if len(found) + len(chunk) > most:
            return None
        found += chunk
    return bytes(found)


async def beginning(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The first bytes of a body, `most` at the most."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk[: most - len(found)]
        if len(found) >= most:
            break
    return bytes(found)


def refused(name: str, url: str, path: str, response: aiohttp.ClientResponse, first_bytes: bytes) -> ParticipantError:
    """An answer with another status than 200."""
    status = response.status
    try:
        problem = ParticipantProblemMessage.model_validate_json(first_bytes, by_name=False, by_alias=True)
    except ValidationError:
        said, code = "", None
    else:
        said, code = f": {printable(cut(problem.message, _LONGEST_DETAIL))}", problem.code
    reason = _BY_CODE[code] if code in _BY_CODE else _BY_STATUS.get(status, ParticipantFailure.REFUSED)
    if 300 <= status < 400:
        reason = ParticipantFailure.REDIRECTED
    detail = f"{path} is not served (404)" if status == 404 else f"{path} answers {status}{said}"
    return ParticipantError(name, url, reason, detail)


def garbage(name: str, url: str, error: ValidationError, *, body: bytes = b"") -> ParticipantError:
    """A body that does not have the form; of another version of the protocol when it says so."""
    try:
        found = from_json(body) if body else None
    except ValueError:
        found = None
    version = found.get("protocol") if isinstance(found, dict) else None
    if isinstance(version, int) and version != VERSION:
        detail = f"it has version {version} of the protocol, not {VERSION}"
        return ParticipantError(name, url, ParticipantFailure.WRONG_VERSION, detail)
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    detail = printable(cut(f"{where}: {first['msg']}" if where else first["msg"], _LONGEST_DETAIL))
    return ParticipantError(name, url, ParticipantFailure.GARBAGE, f"not a report: {detail}")


def text_of(error: BaseException) -> str:
    """What an error of the connection says, in one line."""
    return printable(cut(" ".join(str(error).split()) or type(error).__name__, _LONGEST_DETAIL))
