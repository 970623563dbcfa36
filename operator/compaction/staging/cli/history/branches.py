"""Operations on branches and commits: create, commit, merge, reset, compact, and what they show of themselves."""

from __future__ import annotations

from itertools import islice
from typing import Final

from compaction.cli.histories.running import Result
from compaction.errors import RecordTextError
from compaction.staging import verifying
from compaction.staging.cli.history.fields import Fields
from compaction.staging.cli.history.results import commit_result
from compaction.staging.cli.history.session import COMMITTER, OpenArea
from compaction.staging.cli.maintenance.branch_compaction import compact_branch
from compaction.staging.cli.maintenance.sweep import sweep_all
from compaction.staging.cli.merges import STRATEGIES, message_of_merge, message_of_revert
from compaction.staging.flows.branching import Brancher
from compaction.staging.flows.committing import Draft
from compaction.staging.flows.swapping import seal as seal_branch
from compaction.staging.format.columns import EMPTY_COLUMNS, RecordColumns
from compaction.staging.staged.counters import Counts

DRAFT_FIELDS: Final = ("message", "committer", "metadata")
DEFAULT_LOG: Final = 100
DEFAULT_GRACE: Final = 3600.0


def create_branch(opened: OpenArea, fields: Fields) -> Result:
    """A branch on the commit of a reference."""
    branch = Brancher(opened.area).create(fields.text("branch"), fields.text("source"))
    return {"commit": branch.record.commit_id}


def delete_branch(opened: OpenArea, fields: Fields) -> Result:
    """Delete a branch and what is uncommitted on it."""
    Brancher(opened.area).delete(fields.text("branch"))
    return {}


def list_branches(opened: OpenArea, _fields: Fields) -> Result:
    """All branches with their commits."""
    return {"branches": [{"branch": one.name, "commit": one.record.commit_id} for one in opened.area.branches.every()]}


def create_tag(opened: OpenArea, fields: Fields) -> Result:
    """Name the commit of a reference."""
    tag, reference = fields.text("tag"), fields.text("ref")
    opened.area.repository.check_writable()
    commit = opened.area.references.commit(reference)
    opened.area.commits.tag(tag, commit.id)
    return {"commit": commit.id}


def delete_tag(opened: OpenArea, fields: Fields) -> Result:
    """Delete a tag."""
    tag = fields.text("tag")
    opened.area.repository.check_writable()
    opened.area.commits.remove_tag(tag)
    return {}


def list_tags(opened: OpenArea, _fields: Fields) -> Result:
    """All tags with their commits."""
    return {"tags": [{"tag": one.id, "commit": one.commit_id} for one in opened.area.commits.tags()]}


def commit(opened: OpenArea, fields: Fields) -> Result:
    """Commit what is staged."""
    branch, draft = fields.text("branch"), _draft(fields, "commit")
    tree = fields.text("metarange") if fields.has("metarange") else None
    return commit_result(opened.committer.commit(branch, draft, allow_empty=fields.flag("allow_empty"), tree=tree))


def log(opened: OpenArea, fields: Fields) -> Result:
    """The commits that a reference comes from."""
    reference, amount = fields.text("ref"), fields.number("amount", DEFAULT_LOG, least=1)
    start = opened.area.references.commit(reference)
    return {
        "commits": [
            {**commit_result(one), "message": one.message, "parents": list(one.parents)}
            for one in islice(opened.area.commits.log(start.id), amount)
        ]
    }


def merge(opened: OpenArea, fields: Fields) -> Result:
    """Merge a reference into a branch."""
    source, into = fields.text("source"), fields.text("into")
    strategy = fields.text("strategy", "none")
    if strategy not in STRATEGIES:
        raise RecordTextError(f'"strategy" of {fields.what} is one of {", ".join(STRATEGIES)}')
    draft = _draft(fields, message_of_merge(source, into))
    return commit_result(opened.merger.merge(source, into, draft, STRATEGIES[strategy]))


def revert(opened: OpenArea, fields: Fields) -> Result:
    """Take back what a commit changed."""
    branch, reference = fields.text("branch"), fields.text("ref")
    draft, parent = _draft(fields, message_of_revert(reference)), fields.number("parent", 0)
    allow_empty = fields.flag("allow_empty")
    return commit_result(opened.merger.revert(branch, reference, draft, parent=parent, allow_empty=allow_empty))


def cherry_pick(opened: OpenArea, fields: Fields) -> Result:
    """Make the changes of another commit."""
    branch, reference, parent = fields.text("branch"), fields.text("ref"), fields.number("parent", 0)
    draft = _draft(fields, "") if fields.has("message") else None
    return commit_result(opened.merger.cherry_pick(branch, reference, draft, parent=parent))


def import_(opened: OpenArea, fields: Fields) -> Result:
    """Commit records in place of what is below prefixes; they may come in any order, the last of equal keys counts."""
    branch, records, prefixes = fields.text("branch"), dict(fields.records()), fields.many("prefixes")
    draft = _draft(fields, "import")
    columns = RecordColumns.of(sorted(records.items())) if records else EMPTY_COLUMNS
    return commit_result(opened.importer.import_records(branch, lambda: [columns], draft, prefixes=prefixes))


def reset(opened: OpenArea, fields: Fields) -> Result:
    """Discard all uncommitted changes."""
    opened.resetter.reset(fields.text("branch"))
    return {}


def reset_key(opened: OpenArea, fields: Fields) -> Result:
    """Discard the changes of a key."""
    opened.resetter.reset_key(fields.text("branch"), fields.data("key"))
    return {}


def reset_prefix(opened: OpenArea, fields: Fields) -> Result:
    """Discard the changes below a prefix; of an empty one all."""
    opened.resetter.reset_prefix(fields.text("branch"), fields.data("prefix"))
    return {}


def hard_reset(opened: OpenArea, fields: Fields) -> Result:
    """Put a branch onto another commit."""
    return commit_result(opened.merger.hard_reset(fields.text("branch"), fields.text("ref")))


def seal(opened: OpenArea, fields: Fields) -> Result:
    """Seal the staging token, if anything is in it."""
    branch = fields.text("branch")
    opened.area.repository.check_writable()
    return {"sealed_tokens": len(seal_branch(opened.area, branch).record.sealed_tokens)}


def compact(opened: OpenArea, fields: Fields) -> Result:
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


def sweep(opened: OpenArea, fields: Fields) -> Result:
    """Delete tokens and objects that nothing leads to."""
    grace = fields.seconds("grace", DEFAULT_GRACE)
    opened.area.repository.check_writable()
    tokens, objects = sweep_all(opened.area, grace)
    return {"tokens": tokens.tokens, "rows": tokens.rows, "objects": objects.objects}


def inspect(opened: OpenArea, fields: Fields) -> Result:
    """What a branch has staged, by the counters."""
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


def verify(opened: OpenArea, fields: Fields) -> Result:
    """Read everything again."""
    found = verifying.verify(opened.area, fields.text("ref") if fields.has("ref") else None)
    return {
        "trees": found.trees,
        "ranges": found.ranges,
        "records": found.records,
        "rows": found.rows,
        "problems": list(found.problems),
    }


def _draft(fields: Fields, message: str) -> Draft:
    return Draft(fields.text("committer", COMMITTER), fields.text("message", message), fields.texts("metadata"))
