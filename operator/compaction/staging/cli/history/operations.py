"""All operations of a history, by their names: what each takes, and what carries it out (docs/staging-exec.md)."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compaction.api.text.safe import cut
from compaction.cli.histories.running import Result
from compaction.errors import RecordTextError
from compaction.staging.cli.history import branches, records
from compaction.staging.cli.history.branches import DRAFT_FIELDS
from compaction.staging.cli.history.fields import Fields
from compaction.staging.cli.history.records import PAGE_FIELDS, VALUE_FIELDS
from compaction.staging.cli.history.session import COMMITTER, OpenArea, Session

CREATE_REPO: Final = "create_repo"
_ALWAYS: Final = ("op", "repo")


@dataclass(frozen=True, slots=True)
class Operation:
    """What carries an operation out, and the fields that it takes beside `op` and `repo`."""

    run: Callable[[OpenArea, Fields], Result]
    fields: tuple[str, ...] = ()


OPERATIONS: Final[Mapping[str, Operation]] = {
    "create_branch": Operation(branches.create_branch, ("branch", "source")),
    "delete_branch": Operation(branches.delete_branch, ("branch",)),
    "list_branches": Operation(branches.list_branches),
    "create_tag": Operation(branches.create_tag, ("tag", "ref")),
    "delete_tag": Operation(branches.delete_tag, ("tag",)),
    "list_tags": Operation(branches.list_tags),
    "set": Operation(records.set_, ("branch", "key", *VALUE_FIELDS)),
    "set_if": Operation(records.set_if, ("branch", "key", *VALUE_FIELDS, "if_absent", "if_identity", "if_value")),
    "set_many": Operation(records.set_many, ("branch", "values", "records")),
    "delete": Operation(records.delete, ("branch", "key")),
    "delete_many": Operation(records.delete_many, ("branch", "keys")),
    "get": Operation(records.get, ("ref", "key", "stage_only")),
    "list": Operation(records.list_, ("ref", "delimiter", *PAGE_FIELDS)),
    "diff_uncommitted": Operation(records.diff_uncommitted, ("branch", *PAGE_FIELDS)),
    "diff": Operation(records.diff, ("left", "right", *PAGE_FIELDS)),
    "commit": Operation(branches.commit, ("branch", *DRAFT_FIELDS, "allow_empty", "metarange")),
    "log": Operation(branches.log, ("ref", "amount")),
    "merge": Operation(branches.merge, ("source", "into", "strategy", *DRAFT_FIELDS)),
    "revert": Operation(branches.revert, ("branch", "ref", "parent", "allow_empty", *DRAFT_FIELDS)),
    "cherry_pick": Operation(branches.cherry_pick, ("branch", "ref", "parent", *DRAFT_FIELDS)),
    "import": Operation(branches.import_, ("branch", "values", "records", "prefixes", *DRAFT_FIELDS)),
    "reset": Operation(branches.reset, ("branch",)),
    "reset_key": Operation(branches.reset_key, ("branch", "key")),
    "reset_prefix": Operation(branches.reset_prefix, ("branch", "prefix")),
    "hard_reset": Operation(branches.hard_reset, ("branch", "ref")),
    "seal": Operation(branches.seal, ("branch",)),
    "compact": Operation(branches.compact, ("branch", "take_over")),
    "sweep": Operation(branches.sweep, ("grace",)),
    "inspect": Operation(branches.inspect, ("branch",)),
    "verify": Operation(branches.verify, ("ref",)),
}


def name_of(given: Mapping[str, Any]) -> str:
    """The name of an operation. RecordTextError: it has none that is known."""
    name = given.get("op")
    if name != CREATE_REPO and (not isinstance(name, str) or name not in OPERATIONS):
        known = ", ".join((CREATE_REPO, *OPERATIONS))
        raise RecordTextError(f'"op" is {cut(ascii(name), 80)}, which is no operation: write one of {known}')
    return str(name)


def carry_out(session: Session, name: str, given: Mapping[str, Any]) -> Result:
    """Carry one operation out. RecordTextError: its fields are wrong, nothing was done; and all that flows raise."""
    fields = Fields(given, f"operation {name}")
    repository = fields.text("repo", "")
    if name == CREATE_REPO:
        return _create(session, fields, repository)
    operation = OPERATIONS[name]
    fields.check((*_ALWAYS, *operation.fields))
    return operation.run(session.open(repository), fields)


def _create(session: Session, fields: Fields, repository: str) -> Result:
    fields.check((*_ALWAYS, "namespace", "default_branch", "committer"))
    namespace = fields.text("namespace")
    url = namespace if urllib.parse.urlsplit(namespace).scheme else Path(namespace).absolute().as_uri()
    committer, branch = fields.text("committer", COMMITTER), fields.text("default_branch", "main")
    session.create(repository, url, committer=committer, default_branch=branch)
    return {}
