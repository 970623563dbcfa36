"""The demo of staging areas from beginning to end.

In the stage's directory: `servers/` versitygw and PostgreSQL, `policy.yaml` what is applied, `control-plane/`,
`operator/`. The Secrets are nowhere but in the API server, and where the operator gives them to its workers.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from compaction.api.enums import JobState
from compaction.local.demo import scenes
from compaction.local.demo.accident import Accident, Succession
from compaction.local.demo.cluster import NAMESPACE, DemoCluster, DemoObservation
from compaction.local.demo.leaks import find_leaks
from compaction.local.demo.proving import proving
from compaction.local.demo.replicas import Replicas, leftover_workers
from compaction.local.demo.servers import Servers, start_servers
from compaction.local.demo.stage import Stage
from compaction.local.demo.staging import scenario, view
from compaction.local.demo.staging.cast import StagingCast
from compaction.local.demo.staging.facts import BranchFacts, LeftOver, Listing, due, left_over, list_logs, look
from compaction.local.demo.staging.proof import StagingStory, branch_of, checks
from compaction.local.demo.staging.scenario import (
    CLEANUP,
    COMMITTED,
    DAMAGED,
    EXPERIMENT,
    GRACE,
    POLICY,
    PURGED,
    REPOSITORY,
    WRITE_SECONDS,
)
from compaction.local.demo.staging.writers import writing
from compaction.local.errors import DemoError
from compaction.staging.measures import MOST_TOMBSTONES
from compaction.staging.store import StagingConnection, StagingStore

LONGEST_SECONDS: Final = 1200.0
"""After so long it does not come to an end any more. Not a measure of speed: a busy machine may take minutes."""
DONE: Final = (JobState.SUCCEEDED, JobState.FAULTY)
STAGING_STATUS: Final = r"{.status.debt.measures}{'\n'}{range .status.debt.behind[*]}{.target} {.measures}{'\n'}{end}"


def show(stage: Stage) -> bool:
    """Show it all; True when every claim held. For `Stage.perform`."""
    servers = start_servers(stage.servers, detached=stage.keep, report=stage.step)
    connection = StagingConnection(servers.database_url, options=servers.objects.options())
    with closing(StagingStore.open(connection)) as store, ThreadPoolExecutor(max_workers=1) as pool:
        stage.step(f"{PURGED} keys of branch {CLEANUP.name} are deleted, while the control plane starts")
        begun = pool.submit(_begin, store, servers.url(REPOSITORY))
        cluster = stage.start_cluster(policy=POLICY)
        return _Play(stage, servers, cluster, begun.result()).perform()


def _begin(store: StagingStore, namespace: str) -> StagingCast:
    cast = StagingCast.create(store, namespace)
    cast.begin()
    return cast


@dataclass
class _Play:
    """What happens once everything stands. `named`: what the status of a job said of the damaged range; `reasons`: what
    `why` said when the million tombstones were there.
    """

    stage: Stage
    servers: Servers
    cluster: DemoCluster
    cast: StagingCast
    accident: Accident = field(init=False)
    succession: Succession = field(init=False)
    named: str = ""
    restored: datetime | None = None
    measured: float = 0.0
    reasons: str = ""
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.accident = Accident(self.cluster, self.stage.operator, after_jobs=1)

    def perform(self) -> bool:
        stage, cast = self.stage, self.cast
        before, listed = look(cast.area), list_logs(cast.area, CLEANUP.name)
        milliseconds = f"{listed.seconds * 1000:.0f} ms"
        stage.step(f"listing logs/ of {CLEANUP.name} steps over {listed.stepped_over} tombstones: {milliseconds}")
        stage.step(f"damaged on purpose: range {cast.damaged} of branch {DAMAGED.name}")
        secrets = scenario.secrets(self.servers.objects.options(), self.servers.database_url)
        self.cluster.run("apply", "-f", "-", input=secrets)
        stage.step(f"Secrets applied: {scenario.CREDENTIALS_SECRET}, {scenario.KV_SECRET}")
        replicas = stage.start_operator(self.cluster)
        self.succession = Succession(replicas)
        stage.apply_policy(self.cluster, scenario.policy())
        with scenes.watching(stage.console) as shown, proving(cast.prover):
            shown.say(f"writers of {len(cast.writers)} branches write, and a reader reads, from here to the end")
            with writing(list(cast.writers.values())):
                self._watch(replicas, shown, lambda seen, _: any(job.status.worker for job in seen.jobs))
                first = time.monotonic()
                self._watch(replicas, shown, lambda seen, _: self._seen_enough(seen, shown, first))
            cast.writers[COMMITTED.name].commit()
            shown.say(f"writers ended; what is due is compacted, and what was replaced is deleted after {GRACE}")
            seen = self._watch(replicas, shown, self._settled)
        return self._judge(seen, before, listed, replicas)

    def _watch(
        self,
        replicas: Replicas,
        shown: scenes.SceneView,
        done: Callable[[DemoObservation, Mapping[str, BranchFacts]], bool],
    ) -> DemoObservation:
        facts = look(self.cast.area)

        def show(seen: DemoObservation) -> None:
            nonlocal facts
            self.cast.check()
            facts = look(self.cast.area)
            self._measure(seen)
            scene = view.StagingScene(seen, facts, self.cast.writers, self.cast.prover)
            shown.show(scene)
            if time.monotonic() - self.began > LONGEST_SECONDS:
                # The policy's status changes at each look, so a stage never sees this one stand still.
                line = f"{scene.store_line()}; see {self.stage.operator}"
                raise DemoError(f"not at its end after {LONGEST_SECONDS:.0f} s: {line}")

        return self.stage.watch(self.cluster, replicas, show, done=lambda seen: done(seen, facts))

    def _measure(self, seen: DemoObservation) -> None:
        debt = seen.policy.status.debt if seen.policy is not None else None
        measured = debt.measure(MOST_TOMBSTONES) if debt is not None else 0.0
        if measured >= PURGED and not self.reasons:
            self.reasons = self._why()
        self.measured = max(self.measured, measured)

    def _why(self) -> str:
        """What `kubectl compaction why` says of the policy."""
        command = [sys.executable, "-m", "compaction.cli.main", "why", POLICY, "-n", NAMESPACE]
        answer = subprocess.run(
            [*command, "--kubeconfig", str(self.cluster.kubeconfig)], capture_output=True, text=True, check=False
        )
        return answer.stdout or answer.stderr

    def _seen_enough(self, seen: DemoObservation, shown: scenes.SceneView, began: float) -> bool:
        """Writers wrote for long enough, and all that goes wrong has been overcome."""
        if self.accident.happen(seen):
            jobs = ", ".join(self.accident.jobs)
            shown.say(f"killed (SIGKILL): worker {self.accident.worker}, in the middle of {jobs}")
        self._restore(seen, shown)
        if self.accident.replaced(seen) and self.succession.happen(seen):
            shown.say(f"killed (SIGKILL): {self.succession.killed}, the coordinator")
        compacted = {branch_of(job) for job in seen.jobs if job.status.state is JobState.SUCCEEDED}
        return (
            bool(self.accident.survived(seen))
            and bool(self.succession.done_since(seen))
            and {CLEANUP.name, EXPERIMENT.name, DAMAGED.name} <= compacted
            and time.monotonic() - began >= WRITE_SECONDS
        )

    def _restore(self, seen: DemoObservation, shown: scenes.SceneView) -> None:
        """The damaged range is replaced by what it was, once a job has named it and others have succeeded."""
        if self.restored is not None:
            return
        damage = self.cast.damaged
        said = (one.message for job in seen.jobs for one in job.status.attempts)
        self.named = next((message for message in said if damage in message), "")
        others = any(job.status.state is JobState.SUCCEEDED for job in seen.jobs)
        if self.named and others and self.cast.prover.refused:
            self.restored = datetime.now(UTC)
            self.cast.restore()
            shown.say(f"restored: range {damage}, which a job has named")

    def _settled(self, seen: DemoObservation, facts: Mapping[str, BranchFacts]) -> bool:
        """The last scan of the operator came after the last job's end, no branch is due, and all that was replaced is
        deleted.
        """
        if seen.policy is None or not seen.jobs or any(job.status.state not in DONE for job in seen.jobs):
            return False
        status = seen.policy.status
        ends = [job.status.finished_at for job in seen.jobs if job.status.finished_at is not None]
        return (
            status.active == status.queued == 0
            and status.last_sense_time is not None
            and status.last_sense_time >= max(ends)
            and not any(due(one) for one in facts.values())
            and self._left(seen).none
        )

    def _left(self, seen: DemoObservation) -> LeftOver:
        receipts = (job.status.receipt for job in seen.jobs if job.status.receipt is not None)
        return left_over(self.cast.area, [token for receipt in receipts for token in receipt.sources])

    def _judge(
        self, seen: DemoObservation, before: Mapping[str, BranchFacts], listed: Listing, replicas: Replicas
    ) -> bool:
        stage, cast = self.stage, self.cast
        committed = cast.writers[COMMITTED.name].committed
        stage.console.print(f"\n$ kubectl compaction why {POLICY}        # before", style="bold", highlight=False)
        stage.console.print(self.reasons.rstrip(), highlight=False, markup=False, soft_wrap=True)
        stage.command(self.cluster, "get", "cpol,cjob,lease")
        stage.command(self.cluster, "get", "cpol", POLICY, "-o", f"jsonpath={STAGING_STATUS}")
        stage.console.print(f"\n$ kubectl compaction why {POLICY}", style="bold", highlight=False)
        stage.console.print(self._why().rstrip(), highlight=False, markup=False, soft_wrap=True)
        processes = (*replicas.alive, *leftover_workers(stage.operator))
        story = StagingStory(
            seen=seen,
            writers=cast.writers,
            prover=cast.prover,
            final={name: cast.prover.prove(name) for name in cast.writers},
            committed=committed is not None and cast.prover.shows(f"{COMMITTED.name}@", committed),
            before=before,
            after=look(cast.area),
            listed=(listed, list_logs(cast.area, CLEANUP.name, times=3)),
            accident=self.accident,
            succession=self.succession,
            damaged=cast.damaged,
            named=self.named,
            restored=self.restored,
            measured=self.measured,
            left=self._left(seen),
            leaks=find_leaks(self.servers.secrets, self.cluster, stage.operator, processes),
        )
        for table in (view.receipts_table(story), view.proof_table(story)):
            stage.console.print()
            stage.console.print(table)
        return stage.conclude(self.cluster, checks(story))
