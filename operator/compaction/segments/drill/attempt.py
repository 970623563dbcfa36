"""One attempt of the drill as a process of its own: a worker without Spark and without a policy.

    python -m compaction.segments.drill.attempt ORDER

Everything that fencing depends on is the worker's own code: the port that renews the job's Lease, the deadline on the
process's own clock, the rewrite, the commit under the log's lock. Two things differ. The tasks run in this process, and
with `pause` the attempt stops asking whether its lease is still held: at its first commit point it waits for a line on
stdin and then commits as if nothing had happened, as a worker would that was put to sleep between the question and
the commit. What refuses it then can only be the store.

It says what happens as one JSON object per line on stdout; see `LineKind`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import structlog

from compaction.api.job.job import CompactionJobSpec
from compaction.api.job.job_status import ResourceUsage
from compaction.errors import CompactionError
from compaction.kube.assignments import WorkerIdentity, lease_port
from compaction.kube.client.config import load_connection
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.worker.attempt import HeldJobLease
from compaction.worker.errors import JobStoppedError, LeaseLostError, PortUnavailableError
from compaction.worker.keeper import Patience
from compaction.worker.ports import Assignment, LeasePort

# Messages between the drill and its attempts: plain data, so that either side can be read without the other.


class LineKind(StrEnum):
    """Kinds of lines an attempt prints, in the order in which they come."""

    AT_COMMIT = "AtCommit"  # everything is rewritten and verified; waits for a line on stdin
    BELIEVES = "Believes"  # why the attempt knows by itself that its lease is over; empty text: it does not
    ENDED = "Ended"  # its report
    RENEWED = "Renewed"  # one more renewal was accepted
    RENEWAL_REFUSED = "RenewalRefused"
    RENEWAL_UNKNOWN = "RenewalUnknown"  # no answer that says anything


@dataclass(frozen=True, slots=True)
class Order:
    """The order for an attempt. `spec` is a CompactionJob's; `name` the attempt's, as it stands in the Lease."""

    kubeconfig: str | None
    namespace: str
    name: str
    job: str
    token: int
    lease_seconds: int
    spec: Mapping[str, Any]
    pause: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an attempt. `outcome` and `reason` belong to ENDED."""

    said: LineKind
    text: str
    outcome: str = ""
    reason: str = ""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Line:
        """Of a decoded JSON object. ValueError or KeyError when it is none of an attempt's."""
        return cls(
            LineKind(data["said"]),
            str(data["text"]),
            outcome=str(data.get("outcome", "")),
            reason=str(data.get("reason", "")),
        )


class InlineEngine:
    """Implements `worker.ports.Engine` in the calling thread. `finished` counts tasks."""

    parallelism = 1
    address = "127.0.0.1"

    def __init__(self) -> None:
        self.finished = 0

    def submit(self, work: Callable[[Any], Any], task: Any, *, tag: str) -> Future[Any]:
        """See the port; the future is done when this returns."""
        future: Future[Any] = Future()
        future.set_result(work(task))
        self.finished += 1
        return future

    def cancel(self, tag: str) -> None:
        """Nothing ever runs in the background."""


@dataclass(slots=True)
class Unasked:
    """Implements `ports.HeldLease` for a worker that was asleep since it last asked. Waits at its first commit."""

    lease: HeldJobLease
    engine: InlineEngine
    waited: bool = False

    @property
    def token(self) -> int:
        """See the port."""
        return self.lease.token

    @property
    def bytes_per_second(self) -> int | None:
        """See the port."""
        return self.lease.bytes_per_second

    def should_stop(self) -> bool:
        """Never: that is the point."""
        return False

    def ensure_held(self) -> None:
        """Before the first commit, wait for the order to go on, then report what the correct answer is."""
        if self.engine.finished and not self.waited:
            self.waited = True
            say(LineKind.AT_COMMIT)
            if not sys.stdin.readline():
                raise JobStoppedError("the drill has ended")
            say(LineKind.BELIEVES, self.lease.why_lost or "")

    def note_usage(self, usage: ResourceUsage) -> None:
        """See the port. A drill costs nothing that anybody counts."""

    def set_progress(self, percent: int) -> None:
        """See the port."""
        self.lease.set_progress(percent)


def say(what: LineKind, text: str = "", **more: Any) -> None:
    """One line for the drill."""
    print(json.dumps({"said": what, "text": text, **more}), flush=True)


async def run(order: Order) -> None:
    """The whole attempt. Raises CompactionError when it cannot even begin."""
    connection = load_connection(order.kubeconfig, namespace=order.namespace)
    identity = WorkerIdentity(order.name, order.namespace, policy=order.job, lease_seconds=order.lease_seconds)
    assignment = Assignment(
        job_name=order.job,
        namespace=order.namespace,
        token=order.token,
        lease_seconds=order.lease_seconds,
        spec=CompactionJobSpec.model_validate(order.spec),
    )
    async with lease_port(connection, identity)() as port:
        sent_at = time.monotonic()
        await port.renew_job(order.job, order.token, progress=0)
        lease = HeldJobLease(assignment, sent_at=sent_at, clock=time.monotonic)
        renewing = asyncio.create_task(_keep(port, lease))
        engine = InlineEngine()
        held = Unasked(lease, engine) if order.pause else lease
        try:
            report = await asyncio.to_thread(SegmentRewriter(engine, holder=order.name).run, assignment, held)
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
        say(LineKind.ENDED, report.message, outcome=report.outcome, reason=report.reason)
        await _last_renewal(port, lease)


async def _keep(port: LeasePort, lease: HeldJobLease) -> None:
    """Renew every third of the lease until it is lost, as the worker's heartbeat does."""
    patience = Patience(lease.assignment.lease_seconds, time.monotonic)
    while lease.why_lost is None:
        sent_at = time.monotonic()
        try:
            await patience.answered(port.renew_job(lease.job_name, lease.token, progress=lease.progress))
        except LeaseLostError as error:
            lease.lose(str(error))
        except PortUnavailableError:
            # No answer is no refusal: the lease is lost only by an answer, or by its own clock.
            await patience.pause()
            continue
        lease.renewed(sent_at=sent_at)
        await asyncio.sleep(lease.assignment.lease_seconds / 3)


async def _last_renewal(port: LeasePort, lease: HeldJobLease) -> None:
    """Try to renew once more, and say what the API server makes of it."""
    try:
        await port.renew_job(lease.job_name, lease.token, progress=lease.progress)
    except LeaseLostError as error:
        say(LineKind.RENEWAL_REFUSED, str(error))
    except PortUnavailableError as error:
        say(LineKind.RENEWAL_UNKNOWN, str(error))
    else:
        say(LineKind.RENEWED)


def main(order: str) -> int:
    """Run one attempt; errors go to stderr in one line."""
    # Lines of the rewriter's log would mix with what is said on stdout.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        asyncio.run(run(Order(**json.loads(order))))
    except CompactionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def encode(order: Order) -> str:
    """The argument of `main`."""
    return json.dumps(asdict(order))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
