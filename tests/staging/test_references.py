"""What references mean, and how repositories, branches, tags and commits come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.staging.errors import (
    CorruptMessageError,
    ForeignRepositoryError,
    PredicateFailedError,
    ProtectedBranchError,
    RefExistsError,
    SchemaVersionError,
    StagingNameError,
    UnknownRefError,
)
from compaction.staging.format.messages import BranchData, RepositoryData
from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.refs.branches import BranchRecord, Repositories
from compaction.staging.refs.names import METADATA_PARTITION, REPOSITORIES_PARTITION, SCHEMA_KEY
from support.staging.staging_repos import DRAFT, StagingRepo


@pytest.fixture
def history(repo: StagingRepo) -> StagingRepo:
    """main: first, one, two, and a merge of `side` (one, other)."""
    for key in ("one", "two"):
        repo.set(key, "1")
        repo.committer.commit("main", DRAFT)
        if key == "one":
            repo.brancher.create("side", "main")
    repo.set("other", "1", "side")
    repo.committer.commit("side", DRAFT)
    repo.merger.merge("side", "main", DRAFT)
    return repo


@pytest.mark.parametrize(
    ("reference", "keys"),
    [
        ("main", {"one", "two", "other"}),
        ("main@", {"one", "two", "other"}),
        ("main~1", {"one", "two"}),
        ("main^1", {"one", "two"}),
        ("main^2", {"one", "other"}),
        ("main^2~1", {"one"}),
        ("main~~", {"one"}),
        ("main^^", {"one"}),
        ("main~3", set()),
        ("v1", {"one", "other"}),
        ("v1~2", set()),
        ("main^0", {"one", "two", "other"}),
    ],
)
def test_expressions(history: StagingRepo, reference: str, keys: set[str]) -> None:
    history.area.commits.tag("v1", history.area.branches.get("side").record.commit_id)
    assert set(history.shown(reference)) == keys


@pytest.mark.parametrize("reference", ["main~9", "main^3", "nothing", "abcdef", "0" * 64, "other$", "main@~9"])
def test_what_is_not_there(history: StagingRepo, reference: str) -> None:
    with pytest.raises(UnknownRefError):
        history.area.references.resolve(reference)


@pytest.mark.parametrize("reference", ["", "a b", "main~x", "~1", "main$$", "main~1000000000", "../x"])
def test_what_is_no_reference(history: StagingRepo, reference: str) -> None:
    with pytest.raises(StagingNameError, match="is not the name of a reference"):
        history.area.references.resolve(reference)


def test_log_and_merge_base(history: StagingRepo) -> None:
    commits = history.area.commits
    main, side = (history.area.branches.get(name).record.commit_id for name in ("main", "side"))
    log = list(commits.log(main))
    assert [commit.generation for commit in log] == [4, 3, 3, 2, 1]
    assert len(list(commits.every())) == 5
    assert commits.merge_base(main, side).id == side
    assert commits.merge_base(main, main).id == main
    assert commits.merge_base(log[1].id, log[2].id).generation == 2
    unrelated = commits.add(metarange_id="", parents=(), committer="x", message="y", metadata={}, now=1.5)
    with pytest.raises(UnknownRefError, match="common ancestor"):
        commits.merge_base(main, unrelated.id)


def test_a_commit_is_written_once(repo: StagingRepo) -> None:
    said = {"metarange_id": "", "parents": (), "committer": "x", "message": "y", "metadata": {"b": "1", "a": "2"}}
    one = repo.area.commits.add(**said, now=5.0)  # type: ignore[arg-type]
    other = repo.area.commits.add(**said, now=5.0)  # type: ignore[arg-type]
    assert one == other


def test_tags(repo: StagingRepo) -> None:
    commits = repo.area.commits
    head = repo.area.branches.get("main").record.commit_id
    commits.tag("v1", head)
    with pytest.raises(RefExistsError, match='tag "v1" already exists'):
        commits.tag("v1", head)
    with pytest.raises(StagingNameError, match="looks like the id of a commit"):
        commits.tag("a" * 64, head)
    assert [tag.id for tag in commits.tags()] == ["v1"]
    commits.remove_tag("v1")
    with pytest.raises(UnknownRefError):
        commits.remove_tag("v1")


class TestBranches:
    def test_come_and_go(self, repo: StagingRepo) -> None:
        repo.brancher.create("other", "main", hidden=True)
        assert [branch.name for branch in repo.area.branches.every()] == ["main", "other"]
        with pytest.raises(RefExistsError):
            repo.brancher.create("other", "main")
        for name in ("", "a b", "-x", "a/b", "x" * 300):
            with pytest.raises(StagingNameError):
                repo.brancher.create(name, "main")
        first = repo.area.branches.get("other").record.staging_token
        repo.brancher.delete("other")
        with pytest.raises(UnknownRefError):
            repo.brancher.delete("other")
        repo.brancher.create("other", "main")
        assert repo.area.branches.get("other").record.staging_token != first

    def test_the_default_branch_stays(self, repo: StagingRepo) -> None:
        with pytest.raises(ProtectedBranchError, match="deleting the default branch is not allowed"):
            repo.brancher.delete("main")

    def test_a_deletion_that_ends_half_way_is_one(self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
        repo.brancher.create("other", "main")
        stale = repo.area.branches.get("other")

        def killed(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(type(repo.area.branches), "remove", killed)
            with pytest.raises(KeyboardInterrupt):
                repo.brancher.delete("other")
        assert repo.area.branches.find("other") is None
        with pytest.raises(PredicateFailedError):
            repo.area.branches.swap(stale, stale.record)
        assert repo.brancher.create("other", "main").record.deleted is False

    def test_fields_of_other_versions_are_kept(self, repo: StagingRepo) -> None:
        record = BranchRecord.decode(BranchData(id="main", staging_token="t").encode() + b"\xfa\x3f\x01x")
        assert BranchRecord.decode(replace(record, compacted_base="abc").encode()).unknown == b"\xfa\x3f\x01x"

    def test_a_row_that_is_no_branch(self, repo: StagingRepo) -> None:
        repo.area.kv.set(repo.area.repository.partition, b"branches/broken", b"\x0a\xff")
        with pytest.raises(CorruptMessageError, match="branch broken of repository example"):
            repo.area.branches.get("broken")


class TestRepositories:
    def test_of_another_system(self, kv: SqlKeyValueStore, repo: StagingRepo) -> None:
        """Its servers would drop the compacted bases of branches."""
        kv.set(REPOSITORIES_PARTITION, b"repos/theirs", RepositoryData(id="theirs", instance_uid="x").encode())
        repositories = Repositories(kv)
        with pytest.raises(ForeignRepositoryError, match='repository "theirs" was created by another system'):
            repositories.get("theirs")
        assert [item.name for item in repositories.every()] == ["example"]
        assert repositories.get("example") == repo.area.repository

    def test_names(self, kv: SqlKeyValueStore) -> None:
        repositories = Repositories(kv)
        repositories.prepare()
        for name in ("", "ab", "-abc", "Abc", "a_b", "x" * 64):
            with pytest.raises(StagingNameError, match="is not the name of a repository"):
                repositories.create(name, "s3://b", now=0)
        repositories.create("abc", "s3://b", now=0)
        with pytest.raises(RefExistsError):
            repositories.create("abc", "s3://b", now=0)
        with pytest.raises(UnknownRefError, match='repository "abd" not found'):
            repositories.get("abd")

    @pytest.mark.parametrize("version", [b"3", b"5", b"x"])
    def test_another_version_of_the_layout(self, kv: SqlKeyValueStore, version: bytes) -> None:
        with pytest.raises(SchemaVersionError, match="has no layout of a staging area"):
            Repositories(kv).check_version()
        kv.set(METADATA_PARTITION, SCHEMA_KEY, version)
        with pytest.raises(SchemaVersionError, match="version 4 is known"):
            Repositories(kv).prepare()
