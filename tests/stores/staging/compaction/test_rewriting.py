"""The rewrite of a branch in one process proves what it has written before anybody can name it."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.staging import compaction
from compaction.staging.compaction import rewrite, work_on
from compaction.staging.errors import RewriteProofError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.tree.applying import apply
from compaction.staging.tree.storage import RangeStorage
from support.stores.staging_repos import StagingRepo, framed

HEAD = {f"k/{number}": "1" for number in range(9)}


def test_the_tree_shows_what_the_tokens_show_over_the_base(repo: StagingRepo) -> None:
    record = repo.put(HEAD, base={"a": "1", "b": "1"}, sealed=[{"a": None}, {"a": "2", "c": "1"}], staging={"b": "1#x"})
    done = rewrite(repo.area, work_on("example", record, staged=True))
    found = [pair for batch in repo.area.ranges.records(done.tree) for pair in batch.pairs()]
    assert found == [(b"b", framed("1#x")), (b"c", framed("1"))]
    assert done.fingerprint_before == done.fingerprint_after
    assert done.fingerprint_before.startswith("2:")


def test_a_tree_that_shows_something_else_is_no_result(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a writer of trees that loses changes: the proof does not go by its code."""
    record = repo.put(HEAD, staging={"k/1": "2", "k/2": None})

    def losing(ranges: RangeStorage, base: str, changes: Any, **options: Any) -> Any:
        kept = RecordColumns.of([pair for batch in changes for pair in batch.pairs()][:-1])
        return apply(ranges, base, [kept], **options)

    monkeypatch.setattr(compaction, "apply", losing)
    with pytest.raises(RewriteProofError, match=r"read back as 9:.*, the branch shows 8:"):
        rewrite(repo.area, work_on("example", record, staged=True))
    assert repo.area.branches.get("main").record == record


def test_a_metarange_with_another_id_is_no_result(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    record = repo.put(HEAD, staging={"k/1": "2"})
    monkeypatch.setattr(RangeStorage, "content_id", lambda *_: "0" * 64)
    with pytest.raises(RewriteProofError, match="0" * 64):
        rewrite(repo.area, work_on("example", record, staged=True))
