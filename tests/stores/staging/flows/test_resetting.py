"""Resets: of everything, of a key, of a prefix; with a compacted base too."""

from __future__ import annotations

import pytest

from compaction.staging.errors import UnknownRefError
from compaction.staging.flows.branching import journalled
from compaction.staging.refs.branches import Branch, Branches, BranchRecord
from support.stores.staging_repos import Content, StagingRepo, overlaid

HEAD: Content = {"a/1": "1", "a/2": "2", "b": "3"}
STATES: list[tuple[str, Content | None, list[Content], Content]] = [
    ("staged", None, [], {"a/1": "9", "a/2": None, "a/3": "9", "b": "9"}),
    ("sealed", None, [{"a/1": "9"}, {"a/1": None, "a/2": None, "a/3": "9", "b": None}], {}),
    ("compacted", {"a/1": "9", "a/3": "9"}, [], {}),
    ("compacted deletion", {"a/1": "1"}, [], {}),
    ("all of it", {"a/1": "9", "a/4": "9"}, [{"a/4": None, "a/2": "8"}], {"a/1": "7", "c": "9"}),
]
states = pytest.mark.parametrize(("name", "base", "sealed", "staging"), STATES, ids=[state[0] for state in STATES])


@states
def test_of_everything(
    repo: StagingRepo, name: str, base: Content | None, sealed: list[Content], staging: Content
) -> None:
    record = repo.put(HEAD, base=base, sealed=sealed, staging=staging)
    repo.resetter.reset("main")
    assert (repo.shown(), repo.uncommitted()) == (HEAD, {})
    after = repo.area.branches.get("main").record
    assert (after.sealed_tokens, after.compacted_base) == ((), "")
    assert {item.token for item in journalled(repo.area.kv)} == set(record.tokens)


@states
@pytest.mark.parametrize("key", ["a/1", "a/2", "a/3", "a/4", "b", "nothing"])
def test_of_a_key(
    repo: StagingRepo, name: str, base: Content | None, sealed: list[Content], staging: Content, key: str
) -> None:
    """Also of one that only the compacted base changed or deleted: no token has it then."""
    repo.put(HEAD, base=base, sealed=sealed, staging=staging)
    before = overlaid(staging, *sealed, HEAD if base is None else base)
    repo.resetter.reset_key("main", key.encode())
    expected = dict(before)
    expected.pop(key, None)
    if key in HEAD:
        expected[key] = str(HEAD[key])
    assert repo.shown() == expected
    assert key not in repo.uncommitted()


@states
@pytest.mark.parametrize("prefix", ["a/", "a/1", "", "nothing"])
def test_of_a_prefix(
    repo: StagingRepo, name: str, base: Content | None, sealed: list[Content], staging: Content, prefix: str
) -> None:
    repo.put(HEAD, base=base, sealed=sealed, staging=staging)
    before = overlaid(staging, *sealed, HEAD if base is None else base)
    repo.resetter.reset_prefix("main", prefix.encode())
    kept = {key: text for key, text in before.items() if not key.startswith(prefix)}
    assert repo.shown() == kept | {key: text for key, text in HEAD.items() if key.startswith(prefix)}
    assert [key for key in repo.uncommitted() if key.startswith(prefix)] == []


def test_what_is_written_while_a_prefix_is_reset(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it stays; below the prefix it was before or after the reset."""
    repo.put(HEAD, staging={"a/1": "9"})
    swap = Branches.swap
    done = []

    def write_first(self: Branches, branch: Branch, record: BranchRecord) -> Branch:
        if not done:
            done.append(True)
            repo.set("c", "5")
        return swap(self, branch, record)

    monkeypatch.setattr(Branches, "swap", write_first)
    repo.resetter.reset_prefix("main", b"a/")
    assert repo.shown() == HEAD | {"c": "5"}


def test_of_a_branch_that_is_not(repo: StagingRepo) -> None:
    with pytest.raises(UnknownRefError, match='branch "other" not found'):
        repo.resetter.reset("other")
