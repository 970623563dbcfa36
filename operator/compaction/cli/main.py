"""`compactor`: one command line over all rooms, also reachable as `kubectl compaction`.

Subcommands are imported when they are named, never before: `compactor segments` must work without Kopf and without
Spark, and `compactor --help` must answer at once. Every error a person can act on is a `CompactionError`; it ends in
one line on stderr and exit code 1. Wrong usage is exit code 2 (click's own rule), an interrupt 130, as a shell
expects.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import ShellComplete

from compaction.api.text.printing import printable
from compaction.cli.cluster.flags import cluster_flags, remember
from compaction.cli.lazy import EXIT_DATA_ERROR, EXIT_INTERRUPTED, LazyGroup, describe, pause_collector
from compaction.errors import CompactionError
from compaction.wings import commands

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("compaction.cli.cluster.status:command", "Show what is behind, why, until when, at what cost."),
    "why": (
        "compaction.cli.cluster.why:command",
        "Explain the state of a policy or a job, what happens next, and what to do.",
    ),
    "history": (
        "compaction.cli.cluster.history:command",
        "List the last runs of a policy, or rounds of a catalog.",
    ),
    "events": (
        "compaction.cli.cluster.events:command",
        "List Events of a policy and its jobs, of a job or of a catalog.",
    ),
    "plan": (
        "compaction.cli.cluster.plan:command",
        "Show the newest plan of a policy, and why candidates were left out.",
    ),
    "approve": ("compaction.cli.cluster.plan:approve_command", "Approve plans of policies."),
    "run-now": (
        "compaction.cli.cluster.requests:run_now_command",
        "Compact now what is due; of a catalog, begin a round.",
    ),
    "scan": ("compaction.cli.cluster.requests:scan_command", "Scan stores now, without a plan."),
    "suspend": ("compaction.cli.cluster.requests:suspend_command", "Suspend policies and catalogs."),
    "resume": ("compaction.cli.cluster.requests:resume_command", "Resume policies and catalogs."),
    "hold": ("compaction.cli.cluster.requests:hold_command", "Put an operator on hold."),
    "release": ("compaction.cli.cluster.requests:release_command", "Release the hold of an operator."),
    "retry": ("compaction.cli.cluster.quarantine:command", "Reset the attempts of faulty jobs and retry them."),
    "quarantine": (
        "compaction.cli.cluster.quarantine:quarantine_command",
        "List quarantined sources; release them.",
    ),
    "ui": ("compaction.cli.cluster.console.ui:command", "Serve the console: the fleet in a browser."),
    "check": (
        "compaction.cli.cluster.check:command",
        "Check definitions, rights, the leader, clocks, images and stores.",
    ),
    "debug": (
        "compaction.cli.cluster.debug:command",
        "Collect objects, Events, logs and versions into one archive, without secrets.",
    ),
    "version": (
        "compaction.cli.cluster.status:version_command",
        "Show the version of this program and of the operator.",
    ),
    "run": ("compaction.cli.local.run:command", "Compact the store of a policy file, without Kubernetes."),
    **{command.name: (command.door.name, command.help) for command in commands()},
    "catalogs": ("compaction.catalogs.cli.commands:group", "Work with versioned catalogs and their update logs."),
    "operator": ("compaction.cli.cluster.operator:command", "Run one replica of the operator."),
    "worker": ("compaction.cli.cluster.worker:command", "Run one Spark worker (started by the operator)."),
    "local": ("compaction.cli.local.commands:group", "Run a control plane (etcd and kube-apiserver) on this machine."),
    "drill": (
        "compaction.cli.local.drill:group",
        "Prove on your own cluster what workers and tenants cannot do.",
    ),
}
"""Name -> where its command lives, and the line `--help` shows without importing it."""

CLUSTER_COMMANDS: Final = frozenset(
    {
        *("status", "why", "plan", "approve", "retry", "quarantine"),
        *(
            "run-now",
            "scan",
            "suspend",
            "resume",
            "hold",
            "release",
            "events",
            "history",
            "version",
            "check",
            "debug",
            "ui",
        ),
    }
)
"""Those that read and write objects of a cluster with the user's kubeconfig."""


class Compactor(LazyGroup):
    """All commands."""

    commands_by_name = COMMANDS


@click.group("compactor", cls=Compactor, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="compaction-operator", prog_name="compactor")
@cluster_flags(all_namespaces=True)
@click.pass_context
def cli(context: click.Context, /, **_: object) -> None:
    """Keep storage compacted: policies in YAML, rewrites on Spark, commits with a fencing token.

    The flags -n to -A are for the commands that talk to a cluster, which also take them after their names.
    """
    remember(context, CLUSTER_COMMANDS)


def called_as(program: str) -> str:
    """Return the name of the program in help and usage: kubectl runs a plugin by the name of its file."""
    return "kubectl compaction" if Path(program).name.startswith("kubectl-") else "compactor"


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code; entry point of `compactor` and `kubectl-compaction`.

    `argv`: the words of a command that runs in its caller's process, whose collector of garbage stays as it is.
    """
    if argv is None:
        pause_collector()
    return run(cli, called_as(sys.argv[0]), argv)


def run(command: click.Command, program: str, argv: list[str] | None = None) -> int:
    """Run a command and return its exit code. `program`: its name in help and usage; `argv`: this process's words
    unless given.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path is bytes; one that the terminal's encoding has no letters for is written out, and is no error.
            stream.reconfigure(errors="backslashreplace")
    try:
        result: Any = command.main(args=argv, prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        # A second one while the process ends would only show a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) went away; closing stdout again at exit would print a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DATA_ERROR
    except CompactionError as error:
        click.echo("\n".join(map(printable, f"error: {error}".split("\n"))), err=True)
        return EXIT_DATA_ERROR
    except OSError as error:
        click.echo(f"error: {describe(error)}", err=True)
        return EXIT_DATA_ERROR
    return result if isinstance(result, int) else 0


# `kubectl_complete-compaction`: completion of `kubectl compaction ...`, asked for by kubectl's own completion.
#
# kubectl runs it with the words after `compaction`, the last of them unfinished, and reads one candidate per line,
# with a tab before its description, then a directive (cobra's protocol: `:4` means no file names beside these).

NO_FILES: Final = ":4"
FILES: Final = ":0"


def completions(words: list[str]) -> list[str]:
    """The lines of the answer."""
    *before, unfinished = words or [""]
    items = ShellComplete(cli, {}, "compactor", "").get_completions(before, unfinished)
    plain = [item for item in items if item.type == "plain"]
    directive = NO_FILES if len(plain) == len(items) else FILES
    return [*(f"{item.value}\t{item.help}" if item.help else str(item.value) for item in plain), directive]


def complete() -> int:
    """Entry point."""
    sys.stdout.write("".join(f"{line}\n" for line in completions(sys.argv[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
