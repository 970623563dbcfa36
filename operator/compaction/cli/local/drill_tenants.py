"""`compactor drill tenants`: what a writer of policies gets on a user's own cluster, and does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from compaction.cli.cluster.flags import kubeconfig_option, namespace_option
from compaction.cli.lazy import errors_as_exit_code
from compaction.kube.client.config import load_connection
from compaction.local.tenants import TenantsDrill


@click.command()
@namespace_option("Whose policies the attempts would be. Default: the kubeconfig's.")
@kubeconfig_option()
def tenants(namespace: str | None, kubeconfig: Path | None) -> int:
    """Try what a tenant might, who may write policies and nothing else, and a worker, and see it refused.

    Every attempt is a dry run of the API server, of which nothing is kept. Needs create and delete on RoleBindings in
    the namespace, get on its Leases, and impersonate: an administrator has them.

    Exit codes: 0 every attempt was refused, 1 one was not or the drill could not be carried through.
    """
    with errors_as_exit_code():
        connection = load_connection(kubeconfig, namespace=namespace)
        checks = asyncio.run(TenantsDrill(connection, tell=click.echo).run())
        click.echo()
        for check in checks:
            click.echo(f"{'yes' if check.holds else 'NO ':<4} {check.claim}: {check.fact}")
        held = all(check.holds for check in checks)
        verdict = "a tenant gains nothing" if held else "A TENANT GAINS SOMETHING: apply manifests/admission"
        click.echo(f"\n{verdict} (docs/design/threat-model.md)")
        return 0 if held else 1
    return 1
