"""Jobs that are open in a block store beside those of a local run: who has which blocks since when, and what becomes
of those on which no process works any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from compaction.api.text.printing import format_age, plural, printable
from compaction.blocks.cli.options import age, time_text
from compaction.blocks.index.claims import JobRecord, Sign, is_parked, sign_of
from compaction.blocks.model import SECOND, target_name
from compaction.blocks.store import BlockStore
from compaction.core.planning.debt import HeldJob
from compaction.storage.opened import ThisProcess

_STATES: Final = {
    Sign.DEAD: "{process} claimed it and has ended",
    Sign.SILENT: "{process} claimed it and has given no sign of life for {silent}",
    Sign.ALIVE: "{process} works on it",
    Sign.UNKNOWN: "claimed by a cluster; if no worker runs it: --take-over",
}


@dataclass(frozen=True, slots=True)
class OpenJob:
    """An open job of others, what is known of its holder, and whether its blocks are parked with it. `now`:
    microseconds.
    """

    record: JobRecord
    sign: Sign
    parked: bool
    now: int

    @property
    def text(self) -> str:
        """`job J has 20 blocks since 5m: process 12 on host-a works on it`."""
        count, since = plural(len(self.record.sources), "block"), format_age(age(self.record.changed_at, self.now))
        return f"job {self.record.job} has {count} since {since}: {self.holder}"

    @property
    def holder(self) -> str:
        """The holder of the job, in words."""
        held = self.record.holder
        process = "" if held is None else f"process {held.holder.pid} on {printable(held.holder.host)}"
        silent = "" if held is None else format_age(held.silent // SECOND)
        return _STATES[self.sign].format(process=process, silent=silent)

    def to_object(self) -> dict[str, Any]:
        """The same with exact values."""
        held = self.record.holder
        process = None
        if held is not None:
            process = {"host": held.holder.host, "pid": held.holder.pid, "silentSeconds": held.silent // SECOND}
        return {
            "job": self.record.job,
            "tenant": self.record.key.tenant,
            "blocks": list(self.record.sources),
            "since": time_text(self.record.changed_at),
            "seconds": age(self.record.changed_at, self.now),
            "process": process,
            "state": str(self.sign),
            "parked": self.parked,
        }


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """Those of one store, or none: segment logs are claimed one by one, and say themselves who holds them.

    `here`: this process. `taking`: jobs whose process is gone are taken over; otherwise only planned as if they were.
    """

    store: BlockStore | None = None
    here: ThisProcess | None = None
    taking: bool = True

    def __call__(self) -> Mapping[str, HeldJob]:
        """The jobs that others work on by name, each in a target of its own. Raises DatabaseError."""
        held: dict[str, HeldJob] = {}
        for item in self.all():
            job = item.record
            if not item.sign.is_gone:
                target = target_name(job.key.tenant, job.key.shard, job.key.level, job.job)
                held[job.job] = HeldJob(target, job.key.level, job.sources)
            elif self.taking and self.store is not None and self.store.retire(job.job, token=job.token):
                click.echo(f"{item.text}: taken over", err=True)
        return held

    def all(self) -> tuple[OpenJob, ...]:
        """Every open job of the store, this process's own included. Raises DatabaseError."""
        if self.store is None:
            return ()
        now = self.store.now()
        jobs = [(job, sign_of(job.holder, self.here)) for job in self.store.open_jobs()]
        return tuple(OpenJob(job, sign, is_parked(job, sign, now=now), now) for job, sign in jobs)

    def parked(self) -> list[str]:
        """One line for each job that holds its blocks although no process seems to work on it. Raises
        DatabaseError.
        """
        return [item.text for item in self.all() if item.parked]

    def tell(self, *, take_over: bool = False) -> None:
        """Say on standard error which there are; with `take_over` they are released: no process works on them any more.

        Raises DatabaseError.
        """
        for item in self.all():
            job = item.record
            if take_over and self.store is not None:
                self.store.retire(job.job, token=job.token)
                count, since = plural(len(job.sources), "block"), format_age(age(job.changed_at, item.now))
                click.echo(f"job {job.job}: given up; {count}, claimed {since} ago, are free", err=True)
            elif not (item.sign.is_gone and self.taking):
                click.echo(item.text, err=True)
