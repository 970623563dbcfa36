"""Flags that say which cluster a command is for, as kubectl has them, and names of objects as users write them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from compaction.cli.lazy import errors_as_exit_code
from compaction.kube.errors import ClusterCommandError

# The flags that say which cluster a command is for, as kubectl has them: `-n`, `--context`, `--kubeconfig`, `--as`.
#
# A command takes them before its verb as well as after it; what stands after the verb wins. This module imports
# neither Kopf nor a client of the API, because `cli.main` declares the flags.

Command = TypeVar("Command", bound=Callable[..., Any])
_META: Final = "compaction.cli.cluster.flags"
NAMES: Final = ("namespace", "context", "kubeconfig", "user", "groups", "all_namespaces")
"""The parameters of the flags."""


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The cluster and the namespace that a command is for, as its flags say. `namespace` None: that of the context.

    `user`, `groups`: who the API server is asked to take the caller for (impersonation).
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False
    user: str | None = None
    groups: tuple[str, ...] = ()


def namespace_option(help: str) -> Callable[[Command], Command]:
    """`-n`, for a command that says what it does in that namespace."""
    return click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        shell_complete=lambda context, _, unfinished: _names("namespaces", context, unfinished),
        help=help,
    )


def kubeconfig_option(
    help: str = "Default: KUBECONFIG, then the pod's service account, then ~/.kube/config.", *, exists: bool = False
) -> Callable[[Command], Command]:
    """`--kubeconfig`; `exists`: the file must, because without it the command does something else."""
    return click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path, exists=exists), help=help)


def cluster_flags(*, all_namespaces: bool) -> Callable[[Command], Command]:
    """The flags as options of a click command or group; with `-A` where a command can read all namespaces."""
    options = [
        namespace_option("Namespace; default: that of the context."),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one."),
        kubeconfig_option(),
        click.option("--as", "user", metavar="USER", help="User to impersonate, as with kubectl."),
        click.option(
            "--as-group",
            "groups",
            multiple=True,
            metavar="GROUP",
            help="Group to impersonate; repeatable.",
        ),
    ]
    if all_namespaces:
        options.append(click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces."))

    def decorate(command: Command) -> Command:
        result: Any = command
        for option in reversed(options):
            result = option(result)
        return result  # type: ignore[no-any-return]

    return decorate


def remember(context: click.Context, verbs: frozenset[str]) -> None:
    """Keep the flags that stand before the verb for the command behind it.

    Raises click.UsageError when the command is none of `verbs`, the commands that take them.
    """
    given = {name: value for name in NAMES if (value := context.params.get(name))}
    if given and context.invoked_subcommand not in verbs:
        flags = {name: param.opts[-1] for param in context.command.params if (name := param.name)}
        named = " and ".join(flags[name] for name in given)
        raise click.UsageError(
            f"{context.invoked_subcommand} takes no {named} before its name; see {context.invoked_subcommand} --help",
            context,
        )
    context.meta[_META] = given


def target_of(context: click.Context, params: dict[str, Any], *, all_namespaces: bool) -> CommandTarget:
    """The target of a command from its own flags (taken out of `params`) and those before the verb.

    Raises click.UsageError when both a namespace and all of them are asked for.
    """
    given = {name: value for name in NAMES if (value := params.pop(name, None))}
    before: dict[str, Any] = context.meta.get(_META, {})
    if {"namespace", "all_namespaces"} & given.keys():
        # A namespace after the verb stands for -A before it, and the other way round.
        before = {name: value for name, value in before.items() if name not in ("namespace", "all_namespaces")}
    found = CommandTarget(**(before | given))
    if found.all_namespaces and not all_namespaces:
        raise click.UsageError(f"{context.command_path} reads one namespace: give -n, not -A")
    if found.all_namespaces and found.namespace is not None:
        raise click.UsageError("give either --namespace NAME or --all-namespaces")
    return found


def cluster_options(*, all_namespaces: bool = False) -> Callable[[Command], Command]:
    """The flags of `cluster_flags` (with `-A` where asked for), passed to the command as `target: Target`."""

    def decorate(command: Command) -> Command:
        @cluster_flags(all_namespaces=all_namespaces)
        @functools.wraps(command)
        def wrapped(**params: Any) -> Any:
            target = target_of(click.get_current_context(), params, all_namespaces=all_namespaces)
            with errors_as_exit_code():
                return command(target=target, **params)

        return wrapped  # type: ignore[return-value]

    return decorate


def complete(what: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completion of an argument with the names of objects: `policies`, `jobs`, `catalogs`, or several of them."""
    return lambda context, _, unfinished: _names(what, context, unfinished)


def _names(what: str, context: click.Context, unfinished: str) -> list[str]:
    """Return the names that the cluster of the flags so far has; nothing where it does not answer at once."""
    from compaction.cli.cluster.access import names_of

    params = {name: context.params.get(name) for name in NAMES}
    before = context.find_root().params
    given = {name: value for name in NAMES if (value := params.get(name) or before.get(name))}
    return [name for name in names_of(what, CommandTarget(**given)) if name.startswith(unfinished)]


# Names of objects as users write them: `NAME`, or `cpol/NAME` where several kinds share a name.


class ObjectKind(StrEnum):
    """Our kinds, by the short name that kubectl has for them."""

    POLICY = "cpol"
    JOB = "cjob"
    CATALOG = "ccat"


_WORDS: Final = {
    ObjectKind.POLICY: ("policy", "compactionpolicy", "compactionpolicies"),
    ObjectKind.JOB: ("job", "compactionjob", "compactionjobs"),
    ObjectKind.CATALOG: ("catalog", "catalogcompaction", "catalogcompactions"),
}
_NOUNS: Final = {ObjectKind.POLICY: "a policy", ObjectKind.JOB: "a job", ObjectKind.CATALOG: "a catalog"}


def kind_and_name(text: str, *kinds: ObjectKind) -> tuple[ObjectKind | None, str]:
    """The kind in front of the slash, None without one, and the name.

    Raises ClusterCommandError for a kind that is none of `kinds`.
    """
    word, slash, name = text.rpartition("/")
    if not slash:
        return None, name
    plain = word.partition(".")[0].lower()
    for kind in kinds:
        if plain in (kind.value, *_WORDS[kind]):
            return kind, name
    known = [f"{kind.value} ({_NOUNS[kind]})" for kind in kinds]
    others = f"{', '.join(known[:-1])} or " if known[:-1] else ""
    raise ClusterCommandError(f"{word} is not {others}{known[-1]}")
