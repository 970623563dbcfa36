"""Jobs that are open in a block store beside those of a local run: others work on them, or somebody died."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

import click

from compaction.api.formatting import format_age, plural
from compaction.api.policy import CompactionPolicy
from compaction.cli.blocks_options import PATIENCE
from compaction.cli.blocks_times import age
from compaction.planning.reading import HeldJob
from compaction.stores.blocks.connecting import connection_of
from compaction.stores.blocks.store import BlockStore
from compaction.stores.secrets import Secrets


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """Those of one store, or none: segment logs are claimed one by one, and say themselves who holds them."""

    store: BlockStore | None = None

    def __call__(self) -> Mapping[str, HeldJob]:
        """The open jobs by name, each in a lane of its own. Raises BlockIndexError."""
        jobs = self.store.open_jobs() if self.store is not None else ()
        return {
            job.job: HeldJob(f"{job.key.tenant}/{job.key.shard}/L{job.key.level}/{job.job}", job.key.level, job.sources)
            for job in jobs
        }

    def tell(self, *, take_over: bool) -> None:
        """Say on standard error which there are; with `take_over` they are given up: nobody works on them any more.

        Raises BlockIndexError.
        """
        if self.store is None:
            return
        now = self.store.now()
        for job in self.store.open_jobs():
            count, since = plural(len(job.sources), "block"), format_age(age(job.changed_at, now))
            if take_over:
                self.store.retire(job.job)
                click.echo(f"job {job.job}: given up; {count}, claimed {since} ago, are free", err=True)
            else:
                click.echo(f"job {job.job} has {count} since {since}; if nobody works on it: --take-over", err=True)


@contextmanager
def open_jobs_of(policy: CompactionPolicy, secrets: Secrets) -> Iterator[OpenJobs]:
    """Those of the policy's store. Raises BlockStoreError."""
    store = policy.spec.store.block_store
    if store is None:
        yield OpenJobs()
        return
    with closing(BlockStore.open(connection_of(store.reference, secrets), patience=PATIENCE)) as blocks:
        yield OpenJobs(blocks)
