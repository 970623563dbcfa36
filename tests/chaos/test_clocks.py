"""Wall clocks that differ by days and jump while everything runs: nothing that matters is decided by them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from chaos.aftermath import GROUPS, Logs, assert_all_done, leader
from support.cluster.by_kubectl import Cluster
from support.processes.operators import READY
from support.time.skewed_clock import set_offset
from support.time.waiting import eventually

DAY = 86_400.0
LEASE = 4
WORKERS = {"max": 1, "slots": 2, "idleSeconds": 2, "sparkMaster": "local[1]"}


def test_clocks_that_differ_by_days_and_jump_change_nothing(
    make_fleet: Any, cluster: Cluster, logs: Logs, tmp_path: Path
) -> None:
    clocks = {name: tmp_path / f"{name}.clock" for name in ("ahead", "behind", "workers")}
    for name, offset in (("ahead", 2 * DAY), ("behind", -DAY), ("workers", -3 * DAY)):
        set_offset(clocks[name], offset)
    fleet = make_fleet()
    light = ("--task-seconds", "1.2", "--worker-clock", str(clocks["workers"]))
    for name in ("a", "b"):
        logs.add(name)
    ahead = fleet.start(lease_seconds=LEASE, light=(*light, "--clock", str(clocks["ahead"])))
    eventually(lambda: READY in ahead.output, "the first replica to stand by")
    cluster.apply_policy(logs.path, lease={"durationSeconds": LEASE}, workers=WORKERS)
    behind = fleet.start(lease_seconds=LEASE, light=(*light, "--clock", str(clocks["behind"])))
    eventually(lambda: logs.receipts("a") and logs.receipts("b"), "the first groups to be committed")
    assert leader(cluster) == ahead.identity

    # Everybody's clock jumps, in different directions; nobody expires, nobody loses the lead.
    set_offset(clocks["ahead"], -5 * DAY)
    set_offset(clocks["workers"], 5 * DAY)
    eventually(lambda: min(len(logs.receipts(name)) for name in "ab") >= 3, "more groups to be committed")
    assert leader(cluster) == ahead.identity

    # The next leader lives days before or after the last one: it takes over by its own measure, and adopts what runs.
    eventually(lambda: READY in behind.output, "the second replica to stand by")
    ahead.process.send_signal(signal.SIGKILL)
    eventually(lambda: leader(cluster) == behind.identity, "the other replica to lead")
    set_offset(clocks["behind"], 4 * DAY)
    jobs = assert_all_done(cluster, fleet, logs)
    assert [job["status"]["fencingToken"] for job in jobs] == [1, 1]
    assert [attempt["outcome"] for job in jobs for attempt in job["status"]["attempts"]] == ["Succeeded", "Succeeded"]
    # The grace of an hour is not over for any of the old names, whatever worker and sweeper take the time for.
    assert all(len(list((logs.path / name).glob("*.segment"))) == 8 * GROUPS + 1 for name in logs.before)
