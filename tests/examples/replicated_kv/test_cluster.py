"""Three members as processes, under a load of overwrites and deletions: killed, behind, restarted, led by others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from compaction.local.processes.process import wait_gone
from examples.replicated_kv.processes import NAMES, cluster, run
from replicated_kv.client import Client
from replicated_kv.errors import CommandError
from replicated_kv.machine import Command
from replicated_kv.workload import Workload, difference
from support.clocks import PATIENCE_SECONDS, eventually
from support.timing import at_depth


@contextmanager
def under_load(workload: Workload) -> Iterator[None]:
    """The load runs while the block does; it must not have failed."""
    workload.stopped.clear()
    thread = threading.Thread(target=workload.run)
    thread.start()
    try:
        yield
    finally:
        workload.stopped.set()
        thread.join()
    assert workload.error is None


def compared(client: Client, workload: Workload) -> None:
    """Every key of every member holds what was acknowledged."""
    found = [workload.compare(client, name) for name in NAMES]
    assert difference(found) == ""
    assert {item.keys for item in found} == {found[0].keys}
    assert found[0].keys > workload.keys // 2


def test_every_key_is_right_on_all_members_whatever_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path) as kv, Client(kv.members, timeout=PATIENCE_SECONDS) as client:
        kv.start(*NAMES)
        workload = Workload(kv.members, keys=200, value_bytes=256, pause=0.01, timeout=PATIENCE_SECONDS)

        def has_written(more_than: int) -> bool:
            return len(workload.moments) > more_than

        with under_load(workload):
            eventually(lambda: kv.status(client, "b").snapshot, "a snapshot of b", pause=0.05)
            kv.kill("b")
            behind = client.status("a").last
            # One snapshot later, entries that b does not have are dead: it is installed.
            eventually(lambda: kv.status(client, "a").snapshot > behind + 300, "the leader's snapshot", pause=0.05)
            kv.start("b")
            installed = eventually(lambda: kv.status(client, "b").installed, "an install on b", pause=0.05)
            assert installed >= 1
            wrong = [workload.check(client, number) for number in range(0, 200, 7)]
            assert [item for item in wrong if item] == []
            # The leader in the middle of a write, and a follower: clients and the others find them again.
            for name in at_depth(short="ac", deep="abcabacabc"):
                kv.kill(name)
                written = len(workload.moments)
                kv.start(name)
                eventually(partial(has_written, written + 5), "writes after a restart")
        compared(client, workload)
        before = {name: client.status(name) for name in NAMES}
        assert all(item.entries < item.last // 2 for item in before.values()), "dead entries were dropped"
        kv.stop()
        kv.start(*NAMES)
        compared(client, workload)
        assert {name: client.status(name).keys for name in NAMES} == {name: item.keys for name, item in before.items()}


def test_another_leader_needs_a_higher_term_and_all_that_was_acknowledged(tmp_path: Path) -> None:
    with cluster(tmp_path) as kv, Client(kv.members, timeout=PATIENCE_SECONDS) as client:
        kv.start("a", "b")
        client.put(b"k", b"first")
        with pytest.raises(OSError, match=r"refused"):
            client.status("c")
        for commands in ([], [Command.put(b"k", b"v")] * 5000, [Command.put(b"k", bytes(200_000))] * 90):
            with pytest.raises(CommandError, match="a write has"):
                client.write(commands)
        # c has nothing of it, so no majority lets it lead.
        kv.term, kv.leader = 2, "c"
        kv.kill("a")
        kv.start("c")
        eventually(lambda: "let b lead in a higher term" in kv.log("c").read_text(), "the reason", pause=0.05)
        # b has: it follows c in term 2 by now, so it leads in term 3; members that run need no restart.
        kv.kill("b")
        kv.term, kv.leader = 3, "b"
        kv.start("b")
        assert client.get(b"k") == b"first"
        client.put(b"k", b"second")
        # The old leader is started as it was: it hears of the new one and follows, or is refused when it knows.
        kv.term, kv.leader = 1, "a"
        kv.start("a")
        eventually(lambda: kv.status(client, "a").term == 3, "a to follow b")
        for name in NAMES:
            client.wait_applied(name, client.status("b").commit)
            assert dict(client.scan(name)) == {b"k": b"second"}
        kv.kill("a")
        kv.start("a")
        assert wait_gone(kv.running.pop("a"), timeout=PATIENCE_SECONDS)
        assert (
            kv.log("a")
            .read_text()
            .endswith(
                "error: term 1 of a is refused: this member follows b in term 3; a new leader needs a higher term\n"
            )
        )


def test_commands_of_a_user(tmp_path: Path) -> None:
    with cluster(tmp_path) as kv:
        kv.start(*NAMES)
        assert run(kv, "put", "colour", "blue").stdout == "2\n"
        assert run(kv, "get", "colour").stdout == "blue\n"
        assert run(kv, "delete", "colour").stdout == "3\n"
        answer = run(kv, "get", "colour")
        assert (answer.returncode, answer.stderr) == (1, "error: there is no key 'colour'\n")
        for _ in range(2):
            loaded = run(kv, "load", "--seconds", "0.2", "--keys", "50")
            assert loaded.returncode == 0, loaded.stdout + loaded.stderr
            assert "changes of 50 keys acknowledged" in loaded.stdout
            assert [line.partition(":")[0] for line in loaded.stdout.splitlines()[1:]] == list(NAMES)
            assert loaded.stdout.count(", 0 differ") == 3
        lines = run(kv, "status").stdout.splitlines()
        assert lines[0].split()[:3] == ["NAME", "TERM", "LEADER"]
        assert [line.split()[:3] for line in lines[1:]] == [[name, "1", "a"] for name in NAMES]
