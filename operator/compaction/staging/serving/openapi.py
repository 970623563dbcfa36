"""What the staging endpoint offers, once: the routes are made from these operations, and the OpenAPI document too."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Final

from pydantic import BaseModel

from compaction.serving.openapi import ALWAYS, OF_BODIES, OPEN, Api, Operation
from compaction.staging.serving.messages import (
    MOST_CHANGES,
    ChangedAnswer,
    ChangeLine,
    CommitAnswer,
    CommitRequest,
    DeletedAnswer,
    ObjectAnswer,
    ObjectQuery,
    ObjectValue,
    ReadQuery,
    ResetAnswer,
    ResetRequest,
    StagingProblemAnswer,
    WriteQuery,
    WrittenAnswer,
)
from compaction.staging.serving.pages import DifferencesAnswer, DifferencesQuery, ListedAnswer, ObjectsQuery


class StagingName(StrEnum):
    """The operations that are not open."""

    GET = "getObject"
    PUT = "putObject"
    DELETE = "deleteObject"
    CHANGE = "changeObjects"
    LIST = "listObjects"
    DIFF = "listDifferences"
    COMMIT = "commitBranch"
    RESET = "resetBranch"


_BRANCH: Final = "/v1/repositories/{repository}/branches/{branch}"
_REFERENCE: Final = "/v1/repositories/{repository}/references/{reference}"
_OF_BRANCH: Final = {"repository": "Name of the repository.", "branch": "Name of the branch."}
_OF_REFERENCE: Final = {
    "repository": "Name of the repository.",
    "reference": "A branch, a tag or a commit, with `~N`, `^N`, `@` or `$` behind it.",
}


def _problems(*statuses: HTTPStatus) -> dict[HTTPStatus, type[BaseModel] | str]:
    return dict.fromkeys(
        (*ALWAYS, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, *statuses), StagingProblemAnswer
    )


_CHANGES: Final = (HTTPStatus.CONFLICT,)
_DURABLE: Final = (
    "A 200 says that the change is durable, and was staged before the branch sealed what it was staged in. After 503, "
    "or no answer, send the same request again."
)

_OPERATIONS: Final = (
    Operation(
        StagingName.PUT,
        "PUT",
        f"{_BRANCH}/object",
        "Write one object.",
        {HTTPStatus.OK: WrittenAnswer} | _problems(*OF_BODIES, *_CHANGES, HTTPStatus.PRECONDITION_FAILED),
        _DURABLE + " 412: the condition does not hold, and nothing was written.",
        body=ObjectValue,
        query=WriteQuery,
        parts=_OF_BRANCH,
    ),
    Operation(
        StagingName.DELETE,
        "DELETE",
        f"{_BRANCH}/object",
        "Delete one object.",
        {HTTPStatus.OK: DeletedAnswer} | _problems(*_CHANGES),
        _DURABLE,
        query=ObjectQuery,
        parts=_OF_BRANCH,
    ),
    Operation(
        StagingName.CHANGE,
        "POST",
        f"{_BRANCH}/changes",
        f"Write and delete up to {MOST_CHANGES} objects, one per line.",
        {HTTPStatus.OK: ChangedAnswer} | _problems(*OF_BODIES, *_CHANGES),
        "Of several lines with one key the last one counts. A line that is wrong is named, and none is carried out. "
        "Objects are written one after the other: after 503, or no answer, some may be; send the same request again.",
        lines=ChangeLine,
        parts=_OF_BRANCH,
    ),
    Operation(
        StagingName.COMMIT,
        "POST",
        f"{_BRANCH}/commits",
        "Commit what is staged.",
        {HTTPStatus.OK: CommitAnswer} | _problems(*OF_BODIES, *_CHANGES),
        "What is written meanwhile stays staged. 409: there is nothing to commit, for instance because an earlier "
        "request without an answer did it.",
        body=CommitRequest,
        parts=_OF_BRANCH,
    ),
    Operation(
        StagingName.RESET,
        "POST",
        f"{_BRANCH}/resets",
        "Take back uncommitted changes: of one key, of a prefix, or all.",
        {HTTPStatus.OK: ResetAnswer} | _problems(*OF_BODIES, *_CHANGES),
        body=ResetRequest,
        parts=_OF_BRANCH,
    ),
    Operation(
        StagingName.DIFF,
        "GET",
        f"{_BRANCH}/differences",
        "List how a branch differs from its commit, or from another reference.",
        {HTTPStatus.OK: DifferencesAnswer} | _problems(),
        query=DifferencesQuery,
        parts=_OF_BRANCH,
    ),
    Operation(
        StagingName.GET,
        "GET",
        f"{_REFERENCE}/object",
        "Read one object.",
        {HTTPStatus.OK: ObjectAnswer} | _problems(),
        query=ReadQuery,
        parts=_OF_REFERENCE,
    ),
    Operation(
        StagingName.LIST,
        "GET",
        f"{_REFERENCE}/objects",
        "List objects in the order of their keys' bytes.",
        {HTTPStatus.OK: ListedAnswer} | _problems(),
        "Each page is of one instant. A page may have fewer objects than were asked for, and `more` says whether "
        "others follow.",
        query=ObjectsQuery,
        parts=_OF_REFERENCE,
    ),
)
STAGING_API: Final = Api(
    "Staging areas",
    "Writers stage objects on branches, and commit them; readers read and list what branches, tags and commits show.",
    (*_OPERATIONS, *OPEN),
)
