"""What operator and workers really asked of the API server in this session, against what the manifests let them do: the
part of tests/manifests/test_permissions.py that needs a kubelet. Runs after the other tests here, by its name.
"""

from __future__ import annotations

import json

from node.mallory import AGENT
from node.on_node import NAMESPACE, Installation
from support.cluster.control_plane import account, granted, uses
from tools.node.running import RunningNode

EXECUTORS = "role/compaction-worker-executors"


def test_nobody_was_refused(installation: Installation, node: RunningNode) -> None:
    for name in ("compaction-operator", "compaction-worker", "compaction-executor"):
        # What a tenant's code asks for with a worker's token is refused, and should be: test_mallory.
        done, refused = uses(node.plane.audit_log, account(NAMESPACE, name), by=lambda agent: agent != AGENT)
        # A server that has just started again answers before it knows any role, and refuses everybody everything.
        assert refused - done == frozenset(), name


def test_drivers_use_all_that_they_may_do_for_executors(installation: Installation, node: RunningNode) -> None:
    used, _ = uses(node.plane.audit_log, account(NAMESPACE, "compaction-worker"))
    may = granted([json.loads(installation.kubectl("get", EXECUTORS, "-o", "json"))])
    assert {str(use) for use in may - used} == set()


def test_executors_ask_for_nothing(installation: Installation, node: RunningNode) -> None:
    assert uses(node.plane.audit_log, account(NAMESPACE, "compaction-executor")) == (frozenset(), frozenset())
