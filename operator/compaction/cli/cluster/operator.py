"""`compactor operator`: one replica of the operator. Flags follow client-go's where it has one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compaction.api.names import COORDINATOR_LEASE, POLICY_KIND
from compaction.cli.cluster.flags import kubeconfig_option, namespace_option
from compaction.cli.lazy import errors_as_exit_code, freeze_modules
from compaction.cli.values import BytesParameter, ConfigurationFile, DurationParameter
from compaction.kube.logging import LogFormat

if TYPE_CHECKING:
    from compaction.api.policy.configuration import OperatorConfiguration
    from compaction.kube.client.tokens import AccountName
    from compaction.kube.replica.operator import OperatorConfig


class Account(click.ParamType["AccountName"]):
    """A service account, written NAMESPACE/NAME."""

    name = "account"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AccountName:
        """Its two names."""
        from compaction.kube.client.tokens import AccountName

        try:
            return value if isinstance(value, AccountName) else AccountName.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("operator")
@namespace_option("Watch this namespace.")
@click.option("--all-namespaces", "-A", is_flag=True, help="Watch all namespaces.")
@kubeconfig_option()
@click.option(
    "--config",
    "configuration",
    type=ConfigurationFile(),
    help="Defaults of policies, limits and the sink of events, of kind OperatorConfiguration. Flags win over it.",
)
@click.option("--identity", default=None, help="Name of this replica in the Lease (unique; default: host, pid, uuid).")
@click.option(
    "--service-account",
    type=Account(),
    metavar="NAMESPACE/NAME",
    help="The operator's own service account, whose tokens it shows to participants of catalogs that ask for them.",
)
@click.option("--lease-namespace", help="Namespace of the election's Lease. Default: the watched one.")
@click.option("--lease-name", default=COORDINATOR_LEASE, show_default=True, help="Name of the election's Lease.")
@click.option("--lease-duration", type=DurationParameter(least=1, whole=True), default="15s", show_default=True)
@click.option("--renew-deadline", type=DurationParameter(), default="10s", show_default=True)
@click.option("--retry-period", type=DurationParameter(), default="2s", show_default=True)
@click.option("--bind-address", default="127.0.0.1", show_default=True, help="Address for probes and metrics.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one.")
@click.option("--health-port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="0: any free one.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Number of policies reconciled concurrently.",
)
@click.option(
    "--max-workers",
    type=click.IntRange(min=1),
    help="Maximum number of workers of all policies. Default: limits.maxWorkers of --config, else no limit.",
)
@click.option(
    "--max-bytes-per-second",
    type=BytesParameter(),
    metavar="QUANTITY",
    help="Maximum bytes per second that all rewrites read and write, such as 200M. "
    "Default: limits.maxBytesPerSecond of --config, else no limit.",
)
@click.option(
    "--worker-accounts",
    metavar="NAME,...",
    help="Service accounts that policies may name for drivers. Default: workerAccounts of --config, else "
    "compaction-worker.",
)
@click.option(
    "--privileged-workers",
    is_flag=True,
    default=None,
    help="Let pod templates of policies go beyond the Baseline of the Pod Security Standards. Default: "
    "privilegedWorkers of --config.",
)
@click.option("--resync", type=DurationParameter(least=1), default="5m", show_default=True)
@click.option("--log-format", type=click.Choice([f.value for f in LogFormat]), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Logs and records of workers. Default: ~/.local/state/compaction-operator.",
)
def command(
    *,
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: Path | None,
    configuration: OperatorConfiguration | None,
    identity: str | None,
    service_account: AccountName | None,
    lease_namespace: str | None,
    lease_name: str,
    lease_duration: float,
    renew_deadline: float,
    retry_period: float,
    bind_address: str,
    metrics_port: int,
    health_port: int,
    concurrency: int,
    max_workers: int | None,
    max_bytes_per_second: int | None,
    worker_accounts: str | None,
    privileged_workers: bool | None,
    resync: float,
    log_format: str,
    log_level: str,
    state_dir: Path | None,
) -> int:
    """Run one replica of the operator. Start several: one leads, the others stand by.

    Exit codes: 0 stopped, 1 cannot run (the message says why), 70 and 75 leadership lost (start it again).
    """
    if all_namespaces == (namespace is not None):
        raise click.UsageError("give either --namespace NAME or --all-namespaces")
    # Who asks for help waits for nothing of the operator, which takes longer to import than any other command.
    from pydantic import ValidationError

    from compaction.api.base import first_problem
    from compaction.api.policy.configuration import OperatorConfiguration, with_flags
    from compaction.kube.replica.operator import OperatorConfig, default_state_dir
    from compaction.leases.election import ElectionSettings, make_identity

    try:
        election = ElectionSettings(
            lease_duration=int(lease_duration), renew_deadline=renew_deadline, retry_period=retry_period
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        configuration = with_flags(
            configuration or OperatorConfiguration(),
            max_workers=max_workers,
            max_bytes_per_second=max_bytes_per_second,
            worker_accounts=None if worker_accounts is None else tuple(worker_accounts.split(",")),
            privileged_workers=privileged_workers,
        )
    except ValidationError as error:
        raise click.UsageError(f"flags, and the file of --config: {first_problem(error)}") from error
    config = OperatorConfig(
        namespace=namespace,
        state_dir=(state_dir or default_state_dir()).absolute(),
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        identity=identity or make_identity(),
        kubeconfig=kubeconfig,
        election=election,
        bind_address=bind_address,
        metrics_port=metrics_port,
        health_port=health_port,
        log_format=LogFormat(log_format),
        log_level=logging.getLevelNamesMapping()[log_level.upper()],
        concurrency=concurrency,
        resync_seconds=resync,
        published=configuration.published(),
    )
    return _run(config, configuration, service_account)


def _run(config: OperatorConfig, configuration: OperatorConfiguration, service_account: AccountName | None) -> int:
    """Run the replica with its controllers, and the launcher of where it runs."""
    from compaction.catalogs.operator.controller import CatalogController, Controllers
    from compaction.catalogs.operator.finding import EtcdLogs, HttpParticipants
    from compaction.core.reconcile.observations import OperatorLimits
    from compaction.kube.client.config import runs_in_a_pod
    from compaction.kube.client.secrets import NamespaceSecrets
    from compaction.kube.controller import PolicyController
    from compaction.kube.launchers.backends import make_launcher
    from compaction.kube.launchers.base import PodAllowance
    from compaction.kube.launchers.process import ProcessLauncher
    from compaction.kube.replica.operator import run_operator
    from compaction.kube.sink import sink_of

    environment = {"KUBECONFIG": str(config.kubeconfig.absolute())} if config.kubeconfig is not None else None
    shared = configuration.limits
    limits = OperatorLimits(shared.max_workers, shared.max_bytes_per_second)
    accounts = frozenset(configuration.worker_accounts)
    sink = sink_of(configuration.sink) if configuration.sink is not None else None
    freeze_modules()
    with errors_as_exit_code():
        return run_operator(
            config,
            make_controller=lambda: Controllers(
                PolicyController(limits=limits, defaults=configuration.defaults, sink=sink),
                CatalogController(logs=EtcdLogs(), participants=HttpParticipants, account=service_account, sink=sink),
            ),
            make_launcher=lambda client: make_launcher(
                client,
                ProcessLauncher(
                    config.state_dir,
                    environment=environment,
                    secrets_of=lambda key: NamespaceSecrets(client, key.namespace, f"{POLICY_KIND}/{key.name}"),
                ),
                namespace=config.namespace,
                in_pod=runs_in_a_pod(),
                allowance=PodAllowance(accounts, privileged=configuration.privileged_workers),
            ),
        )
