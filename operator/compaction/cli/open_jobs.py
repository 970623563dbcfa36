"""Jobs that are open in a block store while a local run begins: others work on them, or somebody died."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import click

from compaction.api.formatting import format_age, plural
from compaction.api.policy import CompactionPolicy
from compaction.cli.blocks_options import PATIENCE
from compaction.cli.blocks_times import age
from compaction.planning.reading import HeldJob
from compaction.stores.blocks.connecting import connection_of
from compaction.stores.blocks.store import BlockStore
from compaction.stores.secrets import Secrets


def open_jobs(policy: CompactionPolicy, secrets: Secrets, *, take_over: bool) -> Mapping[str, HeldJob]:
    """Those of the policy's store, if it is one of blocks. Raises BlockStoreError."""
    store = policy.spec.store.block_store
    if store is None:
        return {}
    with closing(BlockStore.open(connection_of(store.reference, secrets), patience=PATIENCE)) as blocks:
        return claims_of_others(blocks, take_over=take_over)


def claims_of_others(store: BlockStore, *, take_over: bool) -> Mapping[str, HeldJob]:
    """The open jobs of the store by name, each in a lane of its own, told on standard error; with `take_over` they are
    closed instead.
    """
    held: dict[str, HeldJob] = {}
    now = store.now()
    for job in store.open_jobs():
        count = plural(len(job.sources), "block")
        since = format_age(age(job.changed_at, now))
        if take_over:
            store.retire(job.job)
            click.echo(f"job {job.job}: given up; {count}, claimed {since} ago, are free", err=True)
            continue
        held[job.job] = HeldJob(
            f"{job.key.tenant}/{job.key.shard}/L{job.key.level}/{job.job}", job.key.level, job.sources
        )
        click.echo(f"job {job.job} has {count} since {since}; if nobody works on it: --take-over", err=True)
    return held
