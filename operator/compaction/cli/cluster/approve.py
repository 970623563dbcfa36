"""`approve`: carry out the plan that waits for approval.

Exit codes: 0 approved (or it was already); 1 not, and stderr says why; 2 wrong usage; 130 not confirmed.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from compaction.api.enums import Approval, PlanApproval
from compaction.api.names import ANNOTATION_APPROVE
from compaction.api.policy.resource import CompactionPolicy, PlanStatus
from compaction.api.text.formatting import plural
from compaction.cli.cluster.access import ask, cluster_options
from compaction.cli.cluster.flags import CommandTarget, complete
from compaction.cli.cluster.plan import show_work, summary
from compaction.kube.client.api import COMPACTION_POLICIES
from compaction.kube.errors import ClusterCommandError


@click.command("approve")
@click.argument("policy", shell_complete=complete("policies"))
@click.argument("plan_hash", metavar="[HASH]", required=False)
@click.option("-y", "--yes", is_flag=True, help="Approve the current plan without a prompt.")
@cluster_options()
def command(*, policy: str, plan_hash: str | None, yes: bool, target: CommandTarget) -> None:
    """Approve the plan of POLICY; with HASH, only if it is still the current one.

    Without HASH the plan is shown first, and you are asked; in a script give HASH or --yes.
    """
    found = ask(target, lambda cluster: cluster.policy(policy))
    plan = plan_to_approve(found, plan_hash)
    if plan is None:
        click.echo(f"policy {policy}: its plan was approved already")
        return
    click.echo(summary(found, plan, datetime.now(UTC)))
    if plan_hash is None and not yes:
        _confirm(plan)
    ask(target, lambda cluster: cluster.annotate(COMPACTION_POLICIES, policy, ANNOTATION_APPROVE, plan.hash))
    click.echo(
        f"approved: the store is scanned again, and if the plan is still {plan.hash}, its "
        f"{plural(plan.jobs, 'job is', 'jobs are')} created; a changed store makes another plan, which waits again"
    )


def plan_to_approve(policy: CompactionPolicy, wanted: str | None) -> PlanStatus | None:
    """The plan that waits; None when it, or the `wanted` one, was approved already.

    Raises ClusterCommandError when nothing waits for approval, or something else than `wanted` does.
    """
    name, plan, namespace = policy.metadata.name, policy.status.plan, policy.metadata.namespace
    if policy.spec.approval is not Approval.MANUAL:
        raise ClusterCommandError(f"policy {name} carries out its plans by itself (spec.approval: Auto)")
    if plan is None or not plan.hash or plan.approval is None:
        raise ClusterCommandError(
            f"No plan of policy {name} waits for approval. Reason: kubectl compaction why {name} -n {namespace}"
        )
    if wanted is not None and wanted != plan.hash:
        raise ClusterCommandError(
            f"No current plan has hash {wanted}; the current one is {plan.hash}. "
            f"Review: kubectl compaction plan {name} -n {namespace}"
        )
    return plan if plan.approval is PlanApproval.PENDING else None


def _confirm(plan: PlanStatus) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"cannot prompt (stdin is not a terminal): pass the hash ({plan.hash}) or --yes")
    show_work(plan)
    click.confirm("Approve it?", abort=True)
