"""The policy by which a block store is compacted by hand: that of a file, or one made of the command's options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from compaction.api.enums import Approval
from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.api.text.quantities import Duration
from compaction.blocks.cli.options import SortKeyParameter, StorePlace
from compaction.cli.values import DurationParameter
from compaction.errors import InvalidManifestError

if TYPE_CHECKING:
    from compaction.api.policy.block_store import BlockStoreReference
    from compaction.api.policy.policy import CompactionPolicy
    from compaction.blocks.store import BlockStoreConnection
    from compaction.storage.secrets import GivenSecrets, Secrets


class LevelsParameter(click.ParamType[tuple[tuple[int, Duration], ...]]):
    """`20:36s,10:12m`: of each level the number of blocks, and the age at which fewer are merged too."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, Duration], ...]:
        if isinstance(value, tuple):
            return value
        levels = []
        for level in str(value).split(","):
            most, colon, age = level.partition(":")
            if not (colon and most.isascii() and most.isdecimal() and len(most) < 10):
                self.fail("write COUNT:AGE for each level, such as 20:36s,10:12m,10:3h", param, ctx)
            levels.append((int(most), DurationParameter().convert(age, param, ctx)))
        return tuple(levels)


Command = TypeVar("Command", bound=Callable[..., Any])


def policy_options(command: Command) -> Command:
    """Add the options that say what a policy would say of compaction, for commands without one; passed as `options`,
    None where not given.
    """

    @functools.wraps(command)
    def wrapped(**rest: Any) -> Any:
        given = [flag for name, flag in _OF_POLICIES.items() if rest[name] not in (None, ())]
        if given and rest["place"].policy is not None:
            raise click.UsageError(f"the policy says that: leave out {given[0]}")
        return command(**rest)

    result: Any = wrapped
    for option in reversed(_POLICY_OPTIONS):
        result = option(result)
    return result  # type: ignore[no-any-return]


_OF_POLICIES: Final = {
    "levels": "--levels",
    "span": "--span",
    "memory": "--memory",
    "sort_key": "--sort-key",
    "columns": "--deduplicate",
    "grace": "--grace",
}
_POLICY_OPTIONS: Final = (
    click.option("--all", "everything", is_flag=True, help="Include blocks that are not due yet."),
    click.option(
        "--levels",
        type=LevelsParameter(),
        metavar="COUNT:AGE,...",
        help="Levels as COUNT:AGE: blocks merge at this count, or at this age. Default: 20:36s,10:12m,10:3h.",
    ),
    click.option("--span", type=DurationParameter(), help="Blocks are merged in windows of this width; default 3h."),
    click.option(
        "--sort-key",
        type=SortKeyParameter(),
        metavar="COLUMN,...",
        help="Sort order of merged blocks. Default: the order of most source bytes, else by time.",
    ),
    click.option("--memory", metavar="BYTES", help="Maximum memory of one merge, such as 512Mi (the default)."),
    click.option(
        "--deduplicate",
        "columns",
        metavar="COLUMN",
        multiple=True,
        help="Keep the last of the rows that are equal in these columns.",
    ),
    click.option(
        "--grace", type=DurationParameter(), help="Time for which replaced blocks stay readable; default 10m."
    ),
)


# A block store by the policy that describes it: `-f policy.yaml`, with its Secrets in the same file or a directory.


def secrets_of_connection(connection: BlockStoreConnection, store: BlockStoreReference) -> GivenSecrets:
    """Return the content of a connection as the Secrets that the store names."""
    from compaction.storage.secrets import GivenSecrets

    values: dict[str, dict[str, str]] = {store.index.secret_name: {store.index.key: connection.index_url}}
    if (options := store.credentials_secret_name) is not None:
        values[options] = values.get(options, {}) | dict(connection.options)
    if (bundle := store.ca_bundle) is not None:
        values[bundle.source] = values.get(bundle.source, {}) | {bundle.key: connection.authorities}
    return GivenSecrets(values, "the command's options")


def connection_of(
    source: TextIO, *, wanted: str | None, directory: Path | None
) -> tuple[CompactionPolicy, BlockStoreConnection]:
    """The policy in a file and the way to its store.

    Raises:
        click.UsageError: no file of policies, or none of a block store.
        SecretError: a Secret that the policy names is in neither place, or lacks a key.
    """
    from compaction.blocks import connecting
    from compaction.cli.local.policy_file import PolicyFile

    file = PolicyFile(source, wanted=wanted, secrets_dir=directory)
    store = file.policy.spec.store.block_store
    if store is None:
        raise click.UsageError(f"{source.name}: policy {file.policy.metadata.name} is not one of a block store")
    return file.policy, connecting.connection_of(store.reference, file)


# The policy under which a block store is compacted by hand: that of a file, or one made of the command's options.

POLICY: Final = "blocks"
INDEX_SECRET: Final = "index"
OPTIONS_SECRET: Final = "store"
AT_ONCE: Final = "1ms"
"""The age at which everything that waits is due."""


def secrets_of_place(place: StorePlace) -> Secrets:
    """The values at hand, under the names that the policy has for them."""
    # The models of policies take longer to import than the help of a command takes to write.
    from compaction.api.policy.block_store import BlockStoreReference, IndexReference

    if place.policy is not None and place.policy.spec.store.block_store is not None:
        return secrets_of_connection(place.connection, place.policy.spec.store.block_store.reference)
    index = IndexReference(secret_name=INDEX_SECRET)
    made = BlockStoreReference(url=place.uri, index=index, credentials_secret_name=OPTIONS_SECRET)
    return secrets_of_connection(place.connection, made)


def policy_of_place(place: StorePlace, options: dict[str, Any], *, jobs: int = 1) -> CompactionPolicy:
    """The policy of the place, or one made of options; run by hand, so no plan waits for approval.

    Raises click.UsageError: options that no policy can have.
    """
    policy = place.policy or _made(place, options)
    spec = policy.spec
    store = spec.store.block_store
    assert store is not None, "the place is that of a block store"
    if options["everything"]:
        levels = tuple(level.model_copy(update={"max_age": Duration(AT_ONCE)}) for level in store.levels)
        store = store.model_copy(update={"levels": levels})
    changed = {
        "store": spec.store.model_copy(update={"block_store": store}),
        "workers": spec.workers.model_copy(update={"slots": jobs}),
        "limits": spec.limits.model_copy(update={"max_concurrent_jobs": jobs}),
        "approval": Approval.AUTO,
    }
    return policy.model_copy(update={"spec": spec.model_copy(update=changed)})


def _made(place: StorePlace, options: dict[str, Any]) -> CompactionPolicy:
    import yaml

    from compaction.cli.local.policy_file import load_policies

    store: dict[str, Any] = {"url": place.uri, "index": {"secretName": INDEX_SECRET}}
    if place.connection.options:
        store["credentialsSecretName"] = OPTIONS_SECRET
    if options["levels"] is not None:
        store["levels"] = [{"maxBlocks": most, "maxAge": age.text} for most, age in options["levels"]]
    if options["span"] is not None:
        store["span"] = options["span"].text
    if options["memory"] is not None:
        store["mergeMemory"] = options["memory"]
    if options["sort_key"] is not None:
        store["sortKey"] = list(options["sort_key"])
    if options["columns"]:
        store["deduplicate"] = {"columns": list(options["columns"])}
    spec: dict[str, Any] = {"store": {"blockStore": store}}
    if options["grace"] is not None:
        spec["cleanup"] = {"delay": options["grace"].text}
    document = {"apiVersion": API_VERSION, "kind": POLICY_KIND, "metadata": {"name": POLICY}, "spec": spec}
    try:
        (policy,) = load_policies(yaml.safe_dump(document), source="the options")
    except InvalidManifestError as error:
        raise click.UsageError(str(error)) from error
    return policy
