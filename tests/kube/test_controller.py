"""The controller on a real API server, with workers that speak the lease protocol but need no Spark."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from compaction.api.policy.policy import CompactionPolicy
from compaction.core.reconcile.actions import Decision
from compaction.core.reconcile.observations import PolicySnapshot
from compaction.core.reconcile.planning import replan
from compaction.core.reconcile.policy import reconcile
from compaction.errors import ApiUnavailableError, ConflictError
from compaction.kube import controller
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, EVENTS, LEASES, ApiClient, Obj
from compaction.kube.client.config import OWN_VERSION, ApiConnection
from compaction.kube.client.transport import Resource
from compaction.kube.informer.queue import LONGEST_STALE_PAUSE, stale_pause
from compaction.segments.adapter import SegmentLogsAdapter
from compaction.segments.commit import fence
from compaction.segments.directory import lock
from compaction.segments.generate import corrupt_entry
from compaction.segments.reading.reader import log_fingerprint
from compaction.segments.reading.view import open_log
from compaction.storage.adapter import Sensed, SenseRequest
from kube.own_coordinator import Bench, bench
from support.segments.ra_owner import killed, running

pytestmark = pytest.mark.apiserver


def run(connection: ApiConnection, namespace: str, tmp_path: Path, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        async with bench(connection, namespace, tmp_path) as made:
            await test(made)
        await asyncio.sleep(0.1)  # connections cut off in the middle of a request close themselves

    asyncio.run(main())


@pytest.fixture
def on_bench(connection: ApiConnection, namespace: str, tmp_path: Path) -> Callable[..., None]:
    return lambda test: run(connection, namespace, tmp_path, test)


def fingerprint(directory: Path) -> str:
    return log_fingerprint(open_log(directory)).hexdigest()


def test_from_policy_to_receipts_within_the_write_budget(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        logs = [b.add_log(name) for name in "abc"]
        before = [fingerprint(log) for log in logs]
        await b.apply()
        jobs = await b.all_in("Succeeded")
        status = await b.settled()
        assert [fingerprint(log) for log in logs] == before
        assert (status["succeeded"], len(jobs)) == (3, 3)
        receipts = [job["status"]["receipt"] for job in jobs]
        assert status["bytesReclaimed"] == sum(r["bytesReclaimed"] for r in receipts) > 0
        assert status["debt"]["bytes"] == 0
        names = {job["metadata"]["name"] for job in jobs}
        assert names.isdisjoint(lease["metadata"]["name"] for lease in await b.leases())
        writes = [c for c in b.calls if c.verb in ("create", "update", "patch", "delete") and c.resource != "events"]
        assert len([c for c in writes if c.resource in ("compactionjobs", "leases")]) <= 8 * len(jobs)
        assert len([c for c in writes if c.resource == "compactionpolicies"]) <= 20

    on_bench(test)


def test_a_damaged_segment_is_named_and_its_siblings_are_compacted(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        log = b.add_log("a", segments=20)
        victim = sorted(log.glob("*.segment"))[3].name
        for record in range(8):  # some of them are live
            corrupt_entry(log, segment=victim, record=record)
        b.add_log("b")
        await b.apply()

        async def quarantined() -> Any:
            status = (await b.policy()).get("status", {})
            return status if status.get("quarantined") and status.get("queued") == status.get("active") == 0 else None

        status = await b.until("a quarantine", quarantined)
        (entry,) = status["quarantined"]
        assert (entry["target"], entry["source"]) == (str(log), victim)
        states = sorted(job["status"]["state"] for job in await b.jobs())
        assert states.count("Faulty") == 1
        assert states.count("Succeeded") >= 1

    on_bench(test)


def test_workers_of_another_version_do_the_work_and_are_told_of(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        b.launcher.version = "0.0.9"
        b.add_log("a")
        await b.apply(workers={"idleSeconds": 600})
        await b.all_in("Succeeded")

        async def told() -> Any:
            return await b.condition("WorkerVersionSkew")

        condition = await b.until("the condition", told)
        assert condition["status"] == "True"
        assert f"version 0.0.9 run beside an operator of version {OWN_VERSION}" in condition["message"]
        text = generate_latest(b.metrics.registry).decode()
        assert "compaction_workers_of_other_version{" in text
        (line,) = [line for line in text.splitlines() if line.startswith("compaction_workers_of_other_version{")]
        assert line.endswith(" 1.0")

    on_bench(test)


def test_a_silent_worker_loses_its_job_to_the_next_one(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        caught: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

        async def hang(worker: str, job: str) -> None:
            if not caught.done():
                caught.set_result((worker, job))
                await asyncio.Event().wait()

        b.launcher.before_commit = hang
        log = b.add_log("a")
        await b.apply(workers={"max": 2, "slots": 1})
        worker, _ = await caught
        b.launcher.kill(worker, unnoticed=True)
        (done,) = await b.all_in("Succeeded")
        first, second = done["status"]["attempts"]
        assert (first["outcome"], first["charged"], first["worker"]) == ("Expired", True, worker)
        assert (second["token"], second["outcome"]) == (2, "Succeeded")
        assert {receipt.token for receipt in fence.read(log).receipts} == {2}

    on_bench(test)


@pytest.mark.parametrize("lost", ["Lease", "status"])
def test_an_assignment_whose_answer_was_lost_is_adopted_and_costs_nothing(
    on_bench: Callable[..., None], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The API server did what it was asked, and the coordinator does not know: it must not assign the job again."""

    async def test(b: Bench) -> None:
        create, replace_status = b.client.create, b.client.replace_status
        unanswered: list[str] = []

        def answer(body: Obj, *, of: str) -> Obj:
            if lost == of and not unanswered:
                unanswered.append(body["metadata"]["name"])
                raise ApiUnavailableError("the answer was lost")
            return body

        async def lossy_create(resource: Any, body: Obj, **more: Any) -> Obj:
            made = await create(resource, body, **more)
            return answer(made, of="Lease") if resource is LEASES else made

        async def lossy_status(resource: Any, body: Obj, **more: Any) -> Obj:
            made = await replace_status(resource, body, **more)
            assigned = resource is COMPACTION_JOBS and made["status"].get("state") == "InProgress"
            return answer(made, of="status") if assigned else made

        monkeypatch.setattr(b.client, "create", lossy_create)
        monkeypatch.setattr(b.client, "replace_status", lossy_status)
        b.add_log("a")
        await b.apply()
        (done,) = await b.all_in("Succeeded")
        assert unanswered == [done["metadata"]["name"]]
        assert [(a["token"], a["outcome"]) for a in done["status"]["attempts"]] == [(1, "Succeeded")]

    on_bench(test)


def test_a_dead_worker_is_noticed_at_once_and_not_charged(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        caught: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def hang(worker: str, job: str) -> None:
            if not caught.done():
                caught.set_result(worker)
                await asyncio.Event().wait()

        b.launcher.before_commit = hang
        b.add_log("a")
        await b.apply(lease={"durationSeconds": 600})
        b.launcher.kill(await caught, unnoticed=False)
        (done,) = await b.all_in("Succeeded")
        assert done["status"]["failures"] == 0
        assert [attempt["outcome"] for attempt in done["status"]["attempts"]] == ["Lost", "Succeeded"]

    on_bench(test)


def test_a_policy_deleted_mid_run_leaves_nothing(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        caught: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def hang(worker: str, job: str) -> None:
            if not caught.done():
                caught.set_result(job)
            await asyncio.Event().wait()

        b.launcher.before_commit = hang
        log = b.add_log("a")
        await b.apply()
        job = await caught
        await b.client.delete(COMPACTION_POLICIES, "logs", namespace=b.namespace)

        async def gone() -> bool:
            return not await b.jobs() and not await b.leases()

        await b.until("nothing is left", gone)
        assert fence.read(log).claimed(job) is None
        await b.until("its workers have ended", lambda: _ended(b))

    on_bench(test)


async def _ended(b: Bench) -> bool:
    return all(task.done() for task in b.launcher.workers.values())


def test_a_coordinator_that_dies_again_and_again_still_gets_everything_done_once(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        logs = [b.add_log(f"log-{i}") for i in range(4)]
        before = [fingerprint(log) for log in logs]
        await b.apply(successfulJobsHistoryLimit=1)
        for pause in (0.3, 0.1, 0.5, 0.2, 0.7, 0.4, 1.0):
            await asyncio.sleep(pause)
            await b.die()
            await b.start()

        async def done() -> Any:
            status = (await b.policy()).get("status", {})
            return status if status.get("succeeded") == 4 and len(await b.jobs()) == 1 else None

        status = await b.until("all four succeeded, three forgotten", done)
        freed = sum(receipt.bytes_reclaimed for log in logs for receipt in fence.read(log).receipts)
        marked = sum(t.bytes for log in logs for claim in fence.read(log).jobs.values() for t in claim.unreferenced)
        assert status["bytesReclaimed"] == freed + marked > 0
        assert [fingerprint(log) for log in logs] == before

    on_bench(test)


def test_a_lock_held_by_somebody_else_is_said_and_the_others_go_on(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        held = b.add_log("a")
        b.add_log("b")
        with lock.hold(held, holder="somebody", timeout=1):
            await b.apply()

            async def waits() -> Any:
                jobs = await b.jobs()
                stuck = [j for j in jobs if j["status"].get("waiting", {}).get("reason") == "LockHeld"]
                others = [j for j in jobs if j["status"].get("state") == "Succeeded"]
                return stuck if stuck and others else None

            (job,) = await b.until("a job that waits for the lock", waits)
            assert "somebody" in job["status"]["waiting"]["message"]
            assert job["status"]["state"] == "Unassigned"
        await b.all_in("Succeeded")

    on_bench(test)


def test_a_lease_of_somebody_else_with_the_jobs_name_is_said_and_left_alone(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        log = b.add_log("a")

        def reason(word: str) -> Callable[[], Awaitable[Any]]:
            async def look() -> Any:
                jobs = await b.jobs()
                return jobs and jobs[0]["status"].get("waiting", {}).get("reason") == word and jobs[0]

            return look

        with lock.hold(log, holder="the test", timeout=1):
            await b.apply()
            job = await b.until("a job that waits", reason("LockHeld"))
            name = job["metadata"]["name"]
            foreign = await b.client.create(
                LEASES,
                {"metadata": {"name": name, "namespace": b.namespace}, "spec": {"holderIdentity": "somebody"}},
            )
        await b.until("a job that says who is in its way", reason("LeaseNameTaken"))
        before = len(b.calls)
        await asyncio.sleep(2)
        # The write that said so may be counted late, and one try of every few seconds may fall into the two.
        writes = [c for c in b.calls[before:] if c.verb not in ("get", "list", "watch")]
        verbs = [c.verb for c in writes if c.resource in ("leases", "compactionjobs")]
        assert sorted(verbs) in ([], ["create"], ["update"], ["create", "update"])
        assert await b.client.get(LEASES, name, namespace=b.namespace) == foreign
        await b.client.delete(LEASES, name, namespace=b.namespace)
        await b.all_in("Succeeded")

    on_bench(test)


def test_a_jobs_lease_without_its_labels_is_a_lost_attempt_and_the_next_one_succeeds(
    on_bench: Callable[..., None],
) -> None:
    async def test(b: Bench) -> None:
        caught: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def hang(worker: str, job: str) -> None:
            if not caught.done():
                caught.set_result(job)
                await asyncio.Event().wait()

        b.launcher.before_commit = hang
        b.add_log("a")
        await b.apply()
        name = await caught
        for _ in range(50):
            lease = await b.client.get(LEASES, name, namespace=b.namespace)
            lease["metadata"]["labels"] = {}
            try:
                await b.client.replace(LEASES, lease)
            except ConflictError:
                continue
            break
        (done,) = await b.all_in("Succeeded")
        first, last = done["status"]["attempts"]
        assert (first["outcome"], first["charged"], last["outcome"]) == ("Lost", False, "Succeeded")

    on_bench(test)


def test_a_root_that_is_not_there(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        os.rmdir(b.root)
        await b.apply()
        condition = await b.until("a condition", lambda: b.condition("Stalled"))
        assert condition["reason"] == "RootNotFound"
        assert str(b.root) in condition["message"]
        event = await b.until("an Event", lambda: b.event("RootNotFound"))
        assert (event["type"], event["message"]) == ("Warning", condition["message"])
        await b.until("a metric", lambda: stalled(b, 1))
        b.root.mkdir()
        b.add_log("a")
        await b.all_in("Succeeded")
        await b.until("an Event of its end", lambda: b.event("Recovered"))
        await b.until("a metric", lambda: stalled(b, 0))

    async def stalled(b: Bench, value: int) -> bool:
        labels = {"namespace": b.namespace, "policy": "logs", "condition": "Stalled", "status": "True"}
        return b.metrics.registry.get_sample_value("compaction_policy_condition", labels) == value

    with capture_logs() as lines:
        on_bench(test)
    said = [(line["log_level"], line["reason"]) for line in lines if line["event"] == "the policy's status has changed"]
    assert said[:2] == [("warning", "RootNotFound"), ("info", "Recovered")]


def test_a_stored_policy_that_is_not_valid_any_more_says_so_everywhere(
    on_bench: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(body: Any) -> CompactionPolicy:
        return CompactionPolicy.model_validate({**body, "spec": {**body["spec"], "approval": "Perhaps"}})

    async def test(b: Bench) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(CompactionPolicy, "from_object", older)
            await b.apply()
            condition = await b.until("a condition", lambda: b.condition("Stalled"))
            assert condition["reason"] == "InvalidSpec"
            event = await b.until("an Event", lambda: b.event("InvalidSpec"))
            assert event["message"].startswith("spec.approval: ")
            labels = {"namespace": b.namespace, "policy": "logs", "reason": "InvalidSpec"}
            assert b.metrics.registry.get_sample_value("compaction_policy_reason", labels) == 1

    on_bench(test)


def test_the_logs_of_a_ra_server_wait_until_it_is_stopped(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        log = b.add_log("a")
        before = fingerprint(log)
        with running(b.root, idle=True) as meta:
            await b.apply()
            condition = await b.until("a condition", lambda: b.condition("Stalled"))
            assert condition["reason"] == "OwnerRunning"
            assert f"a process has {meta} open for writing" in condition["message"]
            status = (await b.policy())["status"]
            assert [(item["target"], item["reason"]) for item in status["targetErrors"]] == [(str(log), "OwnerRunning")]
            assert [row["reason"] for row in status["plan"]["leftOut"]] == ["OwnerRunning"]

            async def announced() -> Any:
                events = (await b.client.list(EVENTS, namespace=b.namespace)).items
                return [event["type"] for event in events if event["reason"] == "OwnerRunning"]

            assert set(await b.until("an event", announced)) == {"Warning"}
            assert await b.jobs() == ()
        await b.all_in("Succeeded")
        assert fingerprint(log) == before
        killed(b.root)
        b.add_log("b")

        async def stalled_again() -> Any:
            condition = await b.condition("Stalled")
            return condition if condition is not None and condition["reason"] == "OwnerRunning" else None

        await b.until("the killed server is noticed", stalled_again)
        said = {"spec": {"store": {"segmentLogs": {"ownership": "Stopped"}}}}
        await b.client.patch(COMPACTION_POLICIES, "logs", said, namespace=b.namespace)

        async def both() -> bool:
            return [job["status"].get("state") for job in await b.jobs()] == ["Succeeded"] * 2

        await b.until("a job for the other log", both)

    on_bench(test)


def test_a_look_that_fails_in_an_unforeseen_way_stalls_the_policy_and_lets_the_interval_pass(
    on_bench: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def sense(*_: Any) -> Any:
        nonlocal looks
        looks += 1
        raise UnicodeEncodeError("utf-8", "\udc80", 0, 1, "surrogates not allowed")

    async def test(b: Bench) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(SegmentLogsAdapter, "sense", sense)
            await b.apply(trigger={"interval": "1s"})
            condition = await b.until("a condition", lambda: b.condition("Stalled"))
            assert condition["reason"] == "SenseFailed"
            assert "UnicodeEncodeError" in condition["message"]
            before = looks
            await asyncio.sleep(2)
            assert looks - before <= 3
        b.add_log("a")
        await b.all_in("Succeeded")

    on_bench(test)


def test_replaced_data_goes_after_the_grace(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        log = b.add_log("a", segments=12)
        before = fingerprint(log)
        await b.apply(cleanup={"delay": "1s"})
        await b.all_in("Succeeded")

        async def clean() -> bool:
            return not fence.read(log).tombstones and not any(path.is_symlink() for path in log.iterdir())

        await b.until("the sweeper has been here", clean)
        assert fingerprint(log) == before

    on_bench(test)


def test_of_two_policies_over_one_root_the_younger_takes_over_when_the_older_is_gone(
    on_bench: Callable[..., None],
) -> None:
    async def test(b: Bench) -> None:
        await b.apply("a-first", suspend=True)
        await b.until("it was seen", lambda: b.condition("Ready", "a-first"))
        b.add_log("a")
        await b.apply("b-second")
        stalled = await b.until("a condition", lambda: b.condition("Stalled", "b-second"))
        assert stalled["reason"] == "StoreOverlaps"
        assert f"the older policy {b.namespace}/a-first" in stalled["message"]
        assert await b.jobs() == ()
        await b.client.delete(COMPACTION_POLICIES, "a-first", namespace=b.namespace)
        await b.all_in("Succeeded")
        assert await b.condition("Stalled", "b-second") is None

    on_bench(test)


def test_suspended(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        b.add_log("a")
        await b.apply(suspend=True)

        async def sensed() -> Any:
            status = (await b.policy()).get("status", {})
            return status if status.get("debt", {}).get("bytes") else None

        status = await b.until("debt is shown", sensed)
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        assert ready["reason"] == "Suspended"
        assert await b.jobs() == ()
        await b.client.patch(COMPACTION_POLICIES, "logs", {"spec": {"suspend": False}}, namespace=b.namespace)
        await b.all_in("Succeeded")

    on_bench(test)


def test_decisions_that_stay_stale_are_made_ever_more_rarely() -> None:
    pauses = [stale_pause(row) for row in range(1, 40)]
    assert pauses[0] < 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_STALE_PAUSE


def test_an_unchanged_store_is_looked_at_and_not_decided_on(
    on_bench: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is at rest costs its looks; a change of the store, or of a job, ends the rest."""
    decided, asked = [0], [0]
    sense = SegmentLogsAdapter.sense

    def counted(snapshot: PolicySnapshot) -> Decision:
        decided[0] += 1
        return reconcile(snapshot)

    def looked(store: SegmentLogsAdapter, request: SenseRequest) -> Sensed:
        asked[0] += 1
        return sense(store, request)

    monkeypatch.setattr(controller, "reconcile", counted)
    monkeypatch.setattr(SegmentLogsAdapter, "sense", looked)
    closed = {"interval": "1s", "windows": [{"schedule": "0 0 29 2 *", "duration": "1m"}]}

    async def test(b: Bench) -> None:
        async def at_rest() -> bool:
            """Three looks in a row of which nothing came."""
            before, looks = decided[0], asked[0]

            async def looked_thrice() -> bool:
                return asked[0] >= looks + 3 or decided[0] != before

            await b.until("three looks", looked_thrice)
            return decided[0] == before

        async def planned(count: int) -> bool:
            return len(await b.jobs()) == count

        b.add_log("a")
        await b.apply(trigger=closed)
        await b.until("the plan", lambda: planned(1))
        await b.until("rest", at_rest)
        b.add_log("b")
        await b.until("the new log to be planned", lambda: planned(2))
        await b.until("rest once more", at_rest)
        (first, _) = await b.jobs()
        await b.client.delete(
            COMPACTION_JOBS, first["metadata"]["name"], namespace=b.namespace, uid=first["metadata"]["uid"]
        )
        await b.until("its deletion", lambda: planned(1))
        await b.until("the job that went away to be planned again", lambda: planned(2))

    on_bench(test)


def test_a_coordinator_that_dies_in_the_middle_of_an_approved_plan_is_followed_by_one_that_creates_the_rest(
    on_bench: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the plan's jobs have run by then, so the plan itself cannot be made again."""
    monkeypatch.setattr(replan, "CREATED_AT_ONCE", 3)
    create = ApiClient.create
    logs, refusing = 8, [True]

    async def created(client: ApiClient, resource: Resource, body: Obj, **more: Any) -> Obj:
        if resource == COMPACTION_JOBS and refusing[0] and len(made) >= 3:
            raise ApiUnavailableError("the API server is gone")
        answer = await create(client, resource, body, **more)
        if resource == COMPACTION_JOBS:
            made.add(answer["metadata"]["name"])
        return answer

    made: set[str] = set()
    monkeypatch.setattr(ApiClient, "create", created)

    async def test(b: Bench) -> None:
        for number in range(logs):
            b.add_log(f"log{number}")
        await b.apply(approval="Manual", successfulJobsHistoryLimit=0)

        async def plan(approval: str) -> Any:
            found = (await b.policy()).get("status", {}).get("plan", {})
            return found if found.get("approval") == approval else None

        async def succeeded() -> int:
            return int((await b.policy()).get("status", {}).get("succeeded", 0))

        async def first_ones() -> bool:
            return await succeeded() >= 2

        pending = await b.until("a plan that waits", lambda: plan("Pending"))
        assert pending["jobs"] == logs
        policy = await b.policy()
        policy["metadata"]["annotations"] = {"compaction.dev/approve": pending["hash"]}
        await b.client.replace(COMPACTION_POLICIES, policy)
        await b.until("the first jobs to have run, and to be forgotten", first_ones)
        assert len(made) == 3
        assert (await plan("Approved"))["hash"] == pending["hash"]
        await b.die()
        refusing[0] = False
        b.add_log("new")  # its work is nobody's plan yet
        await b.start()

        async def all_of_them() -> bool:
            return await succeeded() == logs

        await b.until("the whole plan to have run", all_of_them)
        assert len(made) == logs
        assert {work["job"] for work in pending["work"]} == made

        async def asks() -> Any:
            found = await plan("Pending")
            return found if found and found["jobs"] == 1 else None

        await b.until("the new log to wait for approval", asks)

    on_bench(test)
