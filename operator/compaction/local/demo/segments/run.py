"""The demo of segment logs from beginning to end.

In the stage's directory: `data/` the logs, `policy.yaml` what is applied, `control-plane/`, `operator/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from compaction.api.enums import JobState
from compaction.local.demo.cluster import DemoCluster, DemoObservation
from compaction.local.demo.replicas import Replicas
from compaction.local.demo.segments import proof, scenario
from compaction.local.demo.segments.facts import LogFacts, measure, waiting
from compaction.local.demo.segments.scenario import POLICY, Scenario
from compaction.local.demo.segments.view import proof_table, receipts_table
from compaction.local.demo.stage import Stage
from compaction.local.demo.view import watching

QUARANTINED: Final = r'{range .status.quarantined[*]}{.reason}: {.message}{"\n"}{end}'
DONE: Final = (JobState.SUCCEEDED, JobState.FAULTY)


def show(stage: Stage) -> bool:
    """Show it all; True when every claim held. For `Stage.perform`."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        stage.step(
            f"writing four logs below {stage.data} (512 MiB, one of them damaged) while the control plane starts"
        )
        logs: Future[tuple[Scenario, list[LogFacts]]] = pool.submit(_create_and_measure, stage.data)
        cluster = stage.start_cluster(policy=POLICY)
        story, before = logs.result()
    for facts in before:
        stage.step(f"{facts.path.name}: {facts.entries} readable live entries, sha256 {facts.fingerprint[:12]}")
    stage.step(f"damaged on purpose: {story.damaged.name}/{story.damage.file}, live index {story.damage.index}")
    replicas = stage.start_operator(cluster)
    stage.apply_policy(cluster, scenario.policy(story.root))
    with watching(stage.console) as shown:
        seen = stage.watch(
            cluster,
            replicas,
            shown.show,
            # Nothing is left to do, and the old names are gone.
            done=lambda seen: _settled(seen) and not any(waiting(log) for log in story.logs),
        )
    stage.command(cluster, "get", "cpol,cjob,lease")
    after = {facts.path: measure(facts.path) for facts in before}
    return _prove(stage, proof.prove_logs(before, after, seen), seen, story, replicas=replicas, cluster=cluster)


def _prove(
    stage: Stage,
    proofs: Sequence[proof.LogProof],
    seen: DemoObservation,
    story: Scenario,
    *,
    replicas: Replicas,
    cluster: DemoCluster,
) -> bool:
    checks = proof.checks(proofs, seen, story, replicas_alive=len(replicas.alive))
    stage.command(cluster, "get", "cpol", POLICY, "-o", f"jsonpath={QUARANTINED}")
    for table in (receipts_table(proofs), proof_table(proofs)):
        stage.console.print()
        stage.console.print(table)
    return stage.conclude(cluster, checks)


def _create_and_measure(root: Path) -> tuple[Scenario, list[LogFacts]]:
    story = scenario.create_logs(root)
    return story, [measure(log) for log in story.logs]


def _settled(seen: DemoObservation) -> bool:
    """True when the last scan of the operator came after the last job's end and found nothing left to do."""
    if seen.policy is None or not seen.jobs or any(job.status.state not in DONE for job in seen.jobs):
        return False
    status = seen.policy.status
    ends = [job.status.finished_at for job in seen.jobs if job.status.finished_at is not None]
    return (
        status.debt is not None
        and status.debt.sources == 0
        and status.active == status.queued == 0
        and status.last_sense_time is not None
        and status.last_sense_time >= max(ends)
    )
