"""`plan -f` on a real API server: what it refuses before an operator is asked, what it writes, and what it shows.

The test answers in the operator's place, so that every answer is exact; tests/e2e has the operator in it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.names import ANNOTATION_PREVIEW
from compaction.api.text.printing import mark_of
from support.cluster.by_kubectl import Cluster, User, ago, make, write_status
from support.cluster.manifests import policy_object
from support.cluster.orders import catalog_object

pytestmark = pytest.mark.apiserver


def asked(document: dict[str, Any]) -> str:
    found: str = document["metadata"].get("annotations", {}).get(ANNOTATION_PREVIEW, "")
    return found


@pytest.fixture
def both(cluster: Cluster) -> Cluster:
    make(cluster, policy_object("logs"))
    make(cluster, catalog_object("orders"))
    return cluster


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def file(*documents: dict[str, Any], name: str = "new.yaml") -> str:
        (tmp_path / name).write_text(yaml.safe_dump_all(documents))
        return str(tmp_path / name)

    return file


@contextmanager
def answering(read: Callable[[], dict[str, Any]], answer: Callable[[str], None]) -> Iterator[None]:
    """An operator that answers one preview of an object."""
    before = asked(read())

    def operator() -> None:
        for _ in range(1200):
            if (value := asked(read())) != before:
                answer(value)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=operator)
    thread.start()
    yield
    thread.join()


def column(jobs: int, gain: int, begins: str = "Due") -> dict[str, Any]:
    work = {"jobs": jobs, "costBytes": gain // 2, "gainBytes": gain}
    left = [{"reason": "BelowThreshold", "count": 3 - jobs}] if jobs < 3 else []
    return {
        "plan": work | {"leftOut": left},
        "sources": 4 * jobs,
        "targets": jobs,
        "begins": {"reason": begins, "message": f"it is {begins}"},
        "debtBytes": 3 << 20,
    }


def answer_of(value: str, **more: Any) -> dict[str, Any]:
    found = {"handledAt": ago(0), "outcome": "Accepted", "reason": "Previewed", "id": json.loads(value)["id"]}
    return {"lastHandledPreview": mark_of(value), "preview": found | more}


def test_a_file_of_both_kinds_is_answered_in_two_columns(
    both: Cluster, editor: User, write: Callable[..., str]
) -> None:
    file = write(policy_object("logs", approval="Manual"), catalog_object("orders", dryRun=True))
    change = {"field": "spec.approval", "before": "Auto", "after": "Manual"}
    difference = {
        "target": "/data/ra/a",
        "inForce": {"jobs": 1, "costBytes": 1024, "gainBytes": 2048},
        "proposed": {"reason": "BelowThreshold"},
    }

    def policy(value: str) -> None:
        spec = json.loads(value)["spec"]
        assert (spec["approval"], spec["trigger"]["interval"]) == ("Manual", "1m"), "with the defaults of the server"
        columns = {"inForce": column(3, 3 << 20), "proposed": column(1, 1 << 20, "ApprovalPending")}
        more = columns | {"changes": [change], "changed": 1, "differences": [difference], "differing": 2}
        write_status(both, "cpol/logs", answer_of(value, **more))

    def catalog(value: str) -> None:
        cut = {"reason": "Compacted", "message": "versions 1 to 4 would be cut", "versions": 4, "bytes": 2048}
        held = {"reason": "Transaction", "message": "a holds it", "begins": {"reason": "NothingDue"}}
        columns = {"inForce": cut | {"begins": {"reason": "Due"}, "earliestVersion": 5}, "proposed": held}
        write_status(both, "ccat/orders", answer_of(value, **columns))

    with answering(both.policy, policy), answering(both.catalog, catalog):
        shown = editor.prints("plan", "-f", file)
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert f"policy {both.namespace}/logs: in force, and as {file} proposes it, " in shown
    for row in (
        "CHANGED FIELD IN FORCE PROPOSED",
        "spec.approval Auto Manual",
        "Begins Due ApprovalPending",
        "Jobs 3 1",
        "Sources 12 4",
        "Reclaims 3Mi 1Mi",
        "Left out: BelowThreshold 0 2",
        "/data/ra/a 1 job: copy 1Ki, reclaim 2Ki BelowThreshold",
        "and 1 more target",
        "Proposed: it is ApprovalPending",
        "Ends Compacted Transaction",
        "Cuts 4 versions 0 versions",
        "Earliest 5 -",
        "Proposed: a holds it",
    ):
        assert row in rows, (row, rows)
    assert both.policy()["spec"].get("approval") == "Auto", "nothing but the annotation is written"
    assert both.jobs() == []


def test_data_have_the_whole_answer_and_stdin_is_a_file(
    both: Cluster, editor: User, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    columns = {"inForce": column(3, 3 << 20), "proposed": column(1, 1 << 20)}

    def policy(value: str) -> None:
        write_status(both, "cpol/logs", answer_of(value, **columns))

    text = yaml.safe_dump(policy_object("anything"))
    with answering(both.policy, policy):
        answer = editor.run("plan", "-f", "-", "--against", "logs", "-o", "json", typed=text)
    assert answer.returncode == 0, answer.stderr
    (found,) = json.loads(answer.stdout)
    assert (found["policy"], found["file"], found["namespace"]) == ("logs", "<stdin>", both.namespace)
    assert (found["inForce"]["plan"]["jobs"], found["proposed"]["plan"]["gainBytes"]) == (3, 1 << 20)


def test_what_is_wrong_is_said_with_file_and_field_and_asks_nobody(
    both: Cluster, editor: User, user: Callable[[str], User], write: Callable[..., str]
) -> None:
    wrong = write(policy_object("logs", limits={"maxAttemps": 3}), name="wrong.yaml")
    said = editor.refused("plan", "-f", wrong, code=2)
    assert f"{wrong}: CompactionPolicy logs: spec.limits.maxAttemps: unknown field: did you mean maxAttempts?" in said
    empty = write({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}})
    assert "no CompactionPolicy and no CatalogCompaction in it" in editor.refused("plan", "-f", empty, code=2)
    good, absent = policy_object("logs"), policy_object("absent")
    elsewhere = policy_object("logs")
    elsewhere["metadata"]["namespace"] = "elsewhere"
    two = write(absent, elsewhere, name="two.yaml")
    said = editor.refused("plan", "-f", two, "-n", both.namespace)
    assert f'{two}: policy absent: no CompactionPolicy "absent" in namespace "{both.namespace}" to compare' in said
    assert "apply it with spec.suspend: true" in said
    assert f"metadata.namespace is elsewhere, and -n says {both.namespace}" in said
    for arguments in ((), ("logs", "-f", two), ("logs", "--against", "x"), ("-f", two, "--against", "logs")):
        editor.refused("plan", *arguments, code=2)
    assert asked(both.policy()) == ""

    viewer = user("compaction-viewer")
    assert "not permitted" in viewer.refused("plan", "-f", write(good))
    notes = {f"note-{number}": "x" * 4000 for number in range(20)}
    workers = {"podTemplate": {"metadata": {"annotations": notes}}}
    said = editor.refused("plan", "-f", write(policy_object("logs", workers=workers), name="huge.yaml"))
    assert "characters of JSON, and a preview 65536" in said
    assert asked(both.policy()) == ""


def test_a_refusal_a_missing_operator_and_another_preview_are_said(
    both: Cluster, editor: User, write: Callable[..., str]
) -> None:
    file = write(policy_object("logs"))
    refused = {"outcome": "Refused", "reason": "OtherStore", "message": "the spec opens another store"}

    with answering(both.policy, lambda value: write_status(both, "cpol/logs", answer_of(value, **refused))):
        said = editor.refused("plan", "-f", file)
    assert f"{file}: policy logs: OtherStore: the spec opens another store" in said
    assert "no answer within 1 s" in editor.refused("plan", "-f", file, "--timeout", "1s")
    assert "kubectl compaction check" in editor.refused("plan", "-f", file, "--timeout", "1s")
    with answering(both.policy, lambda value: both.annotate("cpol/logs", preview="{}")):
        assert "another preview was asked for meanwhile" in editor.refused("plan", "-f", file)
