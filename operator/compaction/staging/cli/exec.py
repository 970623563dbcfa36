"""`compactor staging debug exec`: a history of operations, with one line of result for each (docs/staging-exec.md)."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.printing import cut
from compaction.cli.histories import STDIN, STDIN_NAME, History, Result
from compaction.errors import RecordTextError
from compaction.staging import verifying
from compaction.staging.cli.branch_commands import STRATEGIES, message_of_merge, message_of_revert
from compaction.staging.cli.exec_session import (
    COMMITTER,
    OpenArea,
    RecordFields,
    RepositorySession,
    SteppingClock,
    commit_result,
    diff_result,
    page_result,
    value_fields,
)
from compaction.staging.cli.maintenance.compact import compact_branch, sweep_all
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.cli.tables import MAX_LINE_BYTES
from compaction.staging.cli.values import bytes_of_hex, raw_identity
from compaction.staging.flows.branching import Brancher
from compaction.staging.flows.branching import seal as seal_branch
from compaction.staging.flows.committing import CommitDraft
from compaction.staging.flows.reading import MOST_LISTED
from compaction.staging.flows.writing import WriteCondition
from compaction.staging.format.columns import EMPTY_COLUMNS, RecordColumns
from compaction.staging.staged.counters import Counts
from compaction.storage.errors import StorageError

# Operations on branches and commits: create, commit, merge, reset, compact, and what they show of themselves.

DRAFT_FIELDS: Final = ("message", "committer", "metadata")
DEFAULT_LOG: Final = 100
DEFAULT_GRACE: Final = 3600.0


def create_branch(opened: OpenArea, fields: RecordFields) -> Result:
    """A branch on the commit of a reference."""
    branch = Brancher(opened.area).create(fields.text("branch"), fields.text("source"))
    return {"commit": branch.record.commit_id}


def delete_branch(opened: OpenArea, fields: RecordFields) -> Result:
    """Delete a branch and what is uncommitted on it."""
    Brancher(opened.area).delete(fields.text("branch"))
    return {}


def list_branches(opened: OpenArea, _fields: RecordFields) -> Result:
    """All branches with their commits."""
    return {
        "branches": [{"branch": item.name, "commit": item.record.commit_id} for item in opened.area.branches.every()]
    }


def create_tag(opened: OpenArea, fields: RecordFields) -> Result:
    """Name the commit of a reference."""
    tag, reference = fields.text("tag"), fields.text("ref")
    opened.area.repository.check_writable()
    commit = opened.area.references.commit(reference)
    opened.area.commits.tag(tag, commit.id)
    return {"commit": commit.id}


def delete_tag(opened: OpenArea, fields: RecordFields) -> Result:
    """Delete a tag."""
    tag = fields.text("tag")
    opened.area.repository.check_writable()
    opened.area.commits.remove_tag(tag)
    return {}


def list_tags(opened: OpenArea, _fields: RecordFields) -> Result:
    """All tags with their commits."""
    return {"tags": [{"tag": tag.id, "commit": tag.commit_id} for tag in opened.area.commits.tags()]}


def commit(opened: OpenArea, fields: RecordFields) -> Result:
    """Commit what is staged."""
    branch, draft = fields.text("branch"), _draft(fields, "commit")
    tree = fields.text("metarange") if fields.has("metarange") else None
    return commit_result(opened.committer.commit(branch, draft, allow_empty=fields.flag("allow_empty"), tree=tree))


def log(opened: OpenArea, fields: RecordFields) -> Result:
    """The commits that a reference comes from."""
    reference, amount = fields.text("ref"), fields.number("amount", DEFAULT_LOG, least=1)
    start = opened.area.references.commit(reference)
    return {
        "commits": [
            {**commit_result(item), "message": item.message, "parents": list(item.parents)}
            for item in islice(opened.area.commits.log(start.id), amount)
        ]
    }


def merge(opened: OpenArea, fields: RecordFields) -> Result:
    """Merge a reference into a branch."""
    source, into = fields.text("source"), fields.text("into")
    strategy = fields.text("strategy", "none")
    if strategy not in STRATEGIES:
        raise RecordTextError(f'"strategy" of {fields.what} is one of {", ".join(STRATEGIES)}')
    draft = _draft(fields, message_of_merge(source, into))
    return commit_result(opened.merger.merge(source, into, draft, STRATEGIES[strategy]))


def revert(opened: OpenArea, fields: RecordFields) -> Result:
    """Take back what a commit changed."""
    branch, reference = fields.text("branch"), fields.text("ref")
    draft, parent = _draft(fields, message_of_revert(reference)), fields.number("parent", 0)
    allow_empty = fields.flag("allow_empty")
    return commit_result(opened.merger.revert(branch, reference, draft, parent=parent, allow_empty=allow_empty))


def cherry_pick(opened: OpenArea, fields: RecordFields) -> Result:
    """Make the changes of another commit."""
    branch, reference, parent = fields.text("branch"), fields.text("ref"), fields.number("parent", 0)
    draft = _draft(fields, "") if fields.has("message") else None
    return commit_result(opened.merger.cherry_pick(branch, reference, draft, parent=parent))


def import_(opened: OpenArea, fields: RecordFields) -> Result:
    """Commit records in place of what is below prefixes; they may come in any order, the last of equal keys counts."""
    branch, records, prefixes = fields.text("branch"), dict(fields.records()), fields.many("prefixes")
    draft = _draft(fields, "import")
    columns = RecordColumns.of(sorted(records.items())) if records else EMPTY_COLUMNS
    return commit_result(opened.importer.import_records(branch, lambda: [columns], draft, prefixes=prefixes))


def reset(opened: OpenArea, fields: RecordFields) -> Result:
    """Discard all uncommitted changes."""
    opened.resetter.reset(fields.text("branch"))
    return {}


def reset_key(opened: OpenArea, fields: RecordFields) -> Result:
    """Discard the changes of a key."""
    opened.resetter.reset_key(fields.text("branch"), fields.data("key"))
    return {}


def reset_prefix(opened: OpenArea, fields: RecordFields) -> Result:
    """Discard the changes below a prefix; of an empty one all."""
    opened.resetter.reset_prefix(fields.text("branch"), fields.data("prefix"))
    return {}


def hard_reset(opened: OpenArea, fields: RecordFields) -> Result:
    """Put a branch onto another commit."""
    return commit_result(opened.merger.hard_reset(fields.text("branch"), fields.text("ref")))


def seal(opened: OpenArea, fields: RecordFields) -> Result:
    """Seal the staging token, if anything is in it."""
    branch = fields.text("branch")
    opened.area.repository.check_writable()
    return {"sealed_tokens": len(seal_branch(opened.area, branch).record.sealed_tokens)}


def compact(opened: OpenArea, fields: RecordFields) -> Result:
    """Compact all that is staged."""
    done = compact_branch(opened.area, fields.text("branch"), take_over=fields.flag("take_over"))
    if done is None:
        return {"compacted": False}
    counts = done.rewritten.applied.counts
    return {
        "compacted": True,
        "metarange": done.rewritten.tree,
        "tokens": len(done.work.tokens),
        "added": counts.added,
        "changed": counts.changed,
        "removed": counts.removed,
    }


def sweep(opened: OpenArea, fields: RecordFields) -> Result:
    """Delete tokens and objects that nothing leads to."""
    grace = fields.seconds("grace", DEFAULT_GRACE)
    opened.area.repository.check_writable()
    tokens, objects = sweep_all(opened.area, grace)
    return {"tokens": tokens.tokens, "rows": tokens.rows, "objects": objects.objects}


def inspect(opened: OpenArea, fields: RecordFields) -> Result:
    """Return the changes that a branch has staged, by the counters."""
    area = opened.area
    record = area.branches.get(fields.text("branch")).record
    area.counters.flush()
    counted = area.counters.read(record.tokens)
    counts = sum((counted.get(token, Counts()) for token in record.tokens), Counts())
    return {
        "commit": record.commit_id,
        "compacted_base": record.compacted_base,
        "sealed_tokens": len(record.sealed_tokens),
        "writes": counts.writes,
        "tombstones": counts.tombstones,
        "bytes": counts.nbytes,
        "claimed": bool(record.claim_job),
    }


def verify(opened: OpenArea, fields: RecordFields) -> Result:
    """Read everything again."""
    found = verifying.verify(opened.area, fields.text("ref") if fields.has("ref") else None)
    return {
        "trees": found.trees,
        "ranges": found.ranges,
        "records": found.records,
        "rows": found.rows,
        "problems": list(found.problems),
    }


def _draft(fields: RecordFields, message: str) -> CommitDraft:
    return CommitDraft(fields.text("committer", COMMITTER), fields.text("message", message), fields.texts("metadata"))


# Operations on records: set, delete, get, list, diff.

VALUE_FIELDS: Final = ("value", "entry", "identity")
PAGE_FIELDS: Final = ("prefix", "after", "amount")


def set_(opened: OpenArea, fields: RecordFields) -> Result:
    """Write a record."""
    opened.writer.set(fields.text("branch"), fields.data("key"), fields.value())
    return {}


def set_if(opened: OpenArea, fields: RecordFields) -> Result:
    """Write a record if the branch shows what is expected."""
    branch, key, value = fields.text("branch"), fields.data("key"), fields.value()
    opened.writer.set_if(branch, key, value, _condition(fields))
    return {}


def set_many(opened: OpenArea, fields: RecordFields) -> Result:
    """Write many records in one batch."""
    branch, records = fields.text("branch"), fields.records()
    opened.writer.set_many(branch, records)
    return {"records": len(records)}


def delete(opened: OpenArea, fields: RecordFields) -> Result:
    """Delete a record."""
    opened.writer.delete(fields.text("branch"), fields.data("key"))
    return {}


def delete_many(opened: OpenArea, fields: RecordFields) -> Result:
    """Delete up to 1,000 records in one batch."""
    branch, keys = fields.text("branch"), fields.many("keys")
    opened.writer.delete_many(branch, keys)
    return {"keys": len(keys)}


def get(opened: OpenArea, fields: RecordFields) -> Result:
    """Read a record."""
    reference, key = fields.text("ref"), fields.data("key")
    value = opened.reader.get(reference, key, stage_only=fields.flag("stage_only"))
    return {"found": False} if value is None else {"found": True, **value_fields(value)}


def list_(opened: OpenArea, fields: RecordFields) -> Result:
    """Read a page of a listing."""
    reference, delimiter = fields.text("ref"), fields.data("delimiter", b"")
    prefix, after, amount = _page(fields)
    return page_result(opened.reader.list(reference, prefix=prefix, after=after, delimiter=delimiter, amount=amount))


def diff_uncommitted(opened: OpenArea, fields: RecordFields) -> Result:
    """Read a page of what is uncommitted."""
    branch = fields.text("branch")
    prefix, after, amount = _page(fields)
    opened.area.branches.get(branch)
    return diff_result(opened.reader.uncommitted(branch, prefix=prefix, after=after, amount=amount))


def diff(opened: OpenArea, fields: RecordFields) -> Result:
    """Read a page of how a reference differs from the commit of another."""
    left, right = fields.text("left"), fields.text("right")
    prefix, after, amount = _page(fields)
    return diff_result(opened.reader.diff(left, right, prefix=prefix, after=after, amount=amount))


def _page(fields: RecordFields) -> tuple[bytes, bytes, int]:
    return fields.data("prefix", b""), fields.data("after", b""), fields.number("amount", MOST_LISTED, least=1)


def _condition(fields: RecordFields) -> WriteCondition:
    given = [name for name in ("if_absent", "if_identity", "if_value", "if_value_base64") if fields.has(name)]
    if len(given) != 1 or (given == ["if_absent"] and not fields.flag("if_absent")):
        raise RecordTextError(f'{fields.what} needs one of "if_absent": true, "if_identity", "if_value"')
    if given == ["if_absent"]:
        return WriteCondition(None)
    if given == ["if_identity"]:
        return WriteCondition(bytes_of_hex(fields.given["if_identity"], "if_identity"))
    return WriteCondition(raw_identity(fields.data("if_value")))


# All operations of a history, by their names: what each takes, and what carries it out (docs/staging-exec.md).

CREATE_REPO: Final = "create_repo"
_ALWAYS: Final = ("op", "repo")


@dataclass(frozen=True, slots=True)
class RepositoryOperation:
    """An operation of a repository: the function that carries it out, and the fields that it takes beside `op` and
    `repo`.
    """

    run: Callable[[OpenArea, RecordFields], Result]
    fields: tuple[str, ...] = ()


OPERATIONS: Final[Mapping[str, RepositoryOperation]] = {
    "create_branch": RepositoryOperation(create_branch, ("branch", "source")),
    "delete_branch": RepositoryOperation(delete_branch, ("branch",)),
    "list_branches": RepositoryOperation(list_branches),
    "create_tag": RepositoryOperation(create_tag, ("tag", "ref")),
    "delete_tag": RepositoryOperation(delete_tag, ("tag",)),
    "list_tags": RepositoryOperation(list_tags),
    "set": RepositoryOperation(set_, ("branch", "key", *VALUE_FIELDS)),
    "set_if": RepositoryOperation(set_if, ("branch", "key", *VALUE_FIELDS, "if_absent", "if_identity", "if_value")),
    "set_many": RepositoryOperation(set_many, ("branch", "values", "records")),
    "delete": RepositoryOperation(delete, ("branch", "key")),
    "delete_many": RepositoryOperation(delete_many, ("branch", "keys")),
    "get": RepositoryOperation(get, ("ref", "key", "stage_only")),
    "list": RepositoryOperation(list_, ("ref", "delimiter", *PAGE_FIELDS)),
    "diff_uncommitted": RepositoryOperation(diff_uncommitted, ("branch", *PAGE_FIELDS)),
    "diff": RepositoryOperation(diff, ("left", "right", *PAGE_FIELDS)),
    "commit": RepositoryOperation(commit, ("branch", *DRAFT_FIELDS, "allow_empty", "metarange")),
    "log": RepositoryOperation(log, ("ref", "amount")),
    "merge": RepositoryOperation(merge, ("source", "into", "strategy", *DRAFT_FIELDS)),
    "revert": RepositoryOperation(revert, ("branch", "ref", "parent", "allow_empty", *DRAFT_FIELDS)),
    "cherry_pick": RepositoryOperation(cherry_pick, ("branch", "ref", "parent", *DRAFT_FIELDS)),
    "import": RepositoryOperation(import_, ("branch", "values", "records", "prefixes", *DRAFT_FIELDS)),
    "reset": RepositoryOperation(reset, ("branch",)),
    "reset_key": RepositoryOperation(reset_key, ("branch", "key")),
    "reset_prefix": RepositoryOperation(reset_prefix, ("branch", "prefix")),
    "hard_reset": RepositoryOperation(hard_reset, ("branch", "ref")),
    "seal": RepositoryOperation(seal, ("branch",)),
    "compact": RepositoryOperation(compact, ("branch", "take_over")),
    "sweep": RepositoryOperation(sweep, ("grace",)),
    "inspect": RepositoryOperation(inspect, ("branch",)),
    "verify": RepositoryOperation(verify, ("ref",)),
}


def name_of(given: Mapping[str, Any]) -> str:
    """The name of an operation. RecordTextError: it has none that is known."""
    name = given.get("op")
    if name != CREATE_REPO and (not isinstance(name, str) or name not in OPERATIONS):
        known = ", ".join((CREATE_REPO, *OPERATIONS))
        raise RecordTextError(f'"op" is {cut(ascii(name), 80)}, which is no operation: write one of {known}')
    return str(name)


def carry_out(session: RepositorySession, name: str, given: Mapping[str, Any]) -> Result:
    """Carry one operation out. RecordTextError: its fields are wrong, nothing was done; and all that flows raise."""
    fields = RecordFields(given, f"operation {name}")
    repository = fields.text("repo", "")
    if name == CREATE_REPO:
        return _create(session, fields, repository)
    operation = OPERATIONS[name]
    fields.check((*_ALWAYS, *operation.fields))
    return operation.run(session.open(repository), fields)


def _create(session: RepositorySession, fields: RecordFields, repository: str) -> Result:
    fields.check((*_ALWAYS, "namespace", "default_branch", "committer"))
    namespace = fields.text("namespace")
    url = namespace if urllib.parse.urlsplit(namespace).scheme else Path(namespace).absolute().as_uri()
    committer, branch = fields.text("committer", COMMITTER), fields.text("default_branch", "main")
    session.create(repository, url, committer=committer, default_branch=branch)
    return {}


# `compactor staging debug exec`: a history of operations, with one line of result for each.


@click.command("exec")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--stop-on-error", is_flag=True, help="End with the first operation that fails; the exit code is then 1.")
@click.option(
    "--clock",
    "start",
    type=click.IntRange(0),
    metavar="SECONDS",
    help="Begin at this time (since 1970), and let each operation take a second: ids of commits depend on it.",
)
@staging_options(required=False)
@click.pass_context
def exec_command(
    context: click.Context,
    /,
    *,
    file: Path,
    stop_on_error: bool,
    start: int | None,
    place: StagingPlace,
) -> None:
    """Carry out the operations in FILE (- is standard input), one JSON object per line, in order.

    For each a line of result is printed when it is done: {"line": 1, "op": "set", "ok": true}. One that fails says
    "ok": false with the error and its message, and does not end the history. It may be killed at any time: what was
    acknowledged is done, and at most one operation more.

    Exit codes: 0 all lines were carried out, with or without success; 1 a store could not be used, or --stop-on-error;
    2 a line is no operation (named on stderr): the history ends before it.

    Example: compactor staging debug exec history.jsonl --repo logs
    """
    name = STDIN_NAME if str(file) == STDIN else str(file)
    clock = None if start is None else SteppingClock(start)
    with click.open_file(str(file), "rb") as lines, place.open_unchecked(clock) as store:
        session = RepositorySession(place, store, place.repository)

        def carry_out_next(name: str, given: Mapping[str, Any]) -> Result:
            if clock is not None:
                clock.step()
            return carry_out(session, name, given)

        history = History(name_of, carry_out_next, (StorageError, OSError), MAX_LINE_BYTES)
        code = history.run(lines, name=name, stop_on_error=stop_on_error)
    context.exit(code)
