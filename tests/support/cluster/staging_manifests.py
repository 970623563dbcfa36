"""Policies and jobs of staging areas as users and the planner write them, and wrong ones."""

from __future__ import annotations

from typing import Any, Final

from support.cluster.manifests import ABSENT, Wrong, job_object, policy_object

COMMIT: Final = "c" * 64
BASE: Final = "b" * 64
TOKENS: Final = ("lake-main:2", "lake-main:1")


def staging_area(**member: Any) -> dict[str, Any]:
    """The smallest reference to a repository."""
    return {"repository": "lake", "kv": {"secretName": "kv"}} | member


def staging_policy_object(name: str = "staging", **spec: Any) -> dict[str, Any]:
    """The smallest policy of a staging area."""
    return policy_object(name, **{"store": {"stagingArea": staging_area()}} | spec)


def staging_job_object(name: str = "staging-1", **spec: Any) -> dict[str, Any]:
    """A job of a branch as the planner makes it."""
    sources = {"metarange": {"store": staging_area(), "branch": "main", "commit": COMMIT, "tokens": list(TOKENS)}}
    return job_object(name, policy="staging", **{"kind": "MetarangeRewrite", "sources": sources} | spec)


_AREA: Final = "spec/store/stagingArea"
_FIELD: Final = "spec.store.stagingArea"
_THRESHOLDS: Final = f"{_FIELD}.thresholds"

WRONG_STAGING_POLICIES: Final = (
    Wrong("spec/store/segmentLogs", {"root": "/data/ra"}, "spec.store", "set exactly one store: segmentLogs or block"),
    *(
        Wrong(f"{_AREA}/repository", name, f"{_FIELD}.repository", "must be the name of a repository")
        for name in ("Lake", "ab", "-lake", "lake/main")
    ),
    Wrong(f"{_AREA}/repository", ABSENT, f"{_FIELD}.repository", "Required value", "is required"),
    Wrong(f"{_AREA}/kv", ABSENT, f"{_FIELD}.kv", "Required value", "is required"),
    Wrong(f"{_AREA}/kv", {"secretName": "../kv"}, f"{_FIELD}.kv.secretName", "must be the name of a Secret"),
    Wrong(f"{_AREA}/table", "kv;drop", f"{_FIELD}.table", "must be the name of a table"),
    Wrong(f"{_AREA}/include", [], f"{_FIELD}.include", "at least 1 item"),
    Wrong(f"{_AREA}/exclude", ["a/b"], f"{_FIELD}.exclude[0]", "must be a pattern of names of branches"),
    Wrong(f"{_AREA}/thresholds", {"tombstones": 0}, f"{_THRESHOLDS}.tombstones", "greater than or equal to 1"),
    Wrong(f"{_AREA}/thresholds", {"stagedBytes": 0}, f"{_THRESHOLDS}.stagedBytes", "must be more than 0"),
    Wrong(f"{_AREA}/thresholds", {"maxAge": "0s"}, f"{_THRESHOLDS}.maxAge", "must be longer than 0s"),
    Wrong(f"{_AREA}/lakefs", {"leastTokens": 1}, f"{_FIELD}.lakefs.leastTokens", "greater than or equal to 2"),
    Wrong(f"{_AREA}/lakefs", {"quiet": "0s"}, f"{_FIELD}.lakefs.quiet", "must be longer than 0s"),
)

_JOB: Final = "spec/sources/metarange"
_JOB_FIELD: Final = "spec.sources.metarange"

WRONG_STAGING_JOBS: Final = (
    Wrong("spec/sources", {}, "spec.sources", "needs sources.metarange: store, branch, commit and the names of tokens"),
    Wrong(f"{_JOB}/store", ABSENT, f"{_JOB_FIELD}.store", "Required value", "Field required"),
    Wrong(f"{_JOB}/commit", "main", f"{_JOB_FIELD}.commit", "must be the id of a commit"),
    Wrong(f"{_JOB}/base", "main", f"{_JOB_FIELD}.base", "must be the id of a metarange"),
    Wrong(f"{_JOB}/tokens", [], f"{_JOB_FIELD}.tokens", "at least 1 item"),
)
