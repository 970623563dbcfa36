"""`compactor run --watch`: its messages, and the summary at its end.

Exit codes: 0 stopped by SIGINT or SIGTERM; 1 it could not begin; 2 wrong usage.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import click

from compaction.api.enums import JobState
from compaction.api.names import ANNOTATION_APPROVE
from compaction.api.text.formatting import format_bytes, plural
from compaction.api.text.safe import printable
from compaction.cli.local.policy_file import PolicyFile
from compaction.cli.local.run_engine import spark
from compaction.cli.output import OutputFormat, emit, print_pairs
from compaction.cli.progress_bar import ProgressBar
from compaction.local.run.news import PLAN_PENDING, News
from compaction.local.run.once import WORKER
from compaction.local.run.watch import LocalWatch
from compaction.registry import kind_of
from compaction.storage.adapter import open_store
from compaction.storage.processes import ThisProcess

LOCK_TIMEOUT: Final = 30.0
"""Seconds that a local run waits for a lock of the store: there is nothing else it could do meanwhile."""


class StopSignals:
    """The first SIGINT or SIGTERM ends a watch in order, a second one at once. Made before anything is opened: one that
    comes earlier than `stop` is given ends what begins then.
    """

    def __init__(self) -> None:
        self._came = False
        self._stop: Callable[[], None] = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)

    def call(self, stop: Callable[[], None]) -> None:
        """Call `stop` at the first signal, or now if it has come."""
        self._stop = stop
        if self._came:
            stop()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        self._came = True
        self._stop()


def keep_compacted(file: PolicyFile, output: OutputFormat, here: ThisProcess, signals: StopSignals) -> None:
    """Run until a signal, telling on standard error what happens; then print the summary."""
    with ProgressBar() as bar:
        watch = LocalWatch(
            file.policy,
            open_store=lambda policy: open_store(
                policy.spec, holder=WORKER, lock_timeout=LOCK_TIMEOUT, secrets=file, here=here
            ),
            open_runner=lambda policy: spark(policy, bar, file),
            reread=file.reread,
            tell=lambda news: bar.line(_line(news, file)),
            progress=bar.note,
        )
        signals.call(watch.stop)
        watch.run()
    _show(watch, output)


def _line(news: News, file: PolicyFile) -> str:
    about = f"{news.job}: " if news.job else ""
    text = news.message
    if news.reason == PLAN_PENDING:
        plan_hash = text.partition(":")[0]
        where = f"in {file.path}, or start again with --approve" if file.path is not None else "with --approve"
        text += f"; approve it by the annotation {ANNOTATION_APPROVE}: {plan_hash} {where}"
    mark = "warning: " if news.warning else ""
    return f"{time.strftime('%H:%M:%S')}  {news.reason:<18}  {mark}{about}{printable(text)}"


def _show(watch: LocalWatch, output: OutputFormat) -> None:
    data = summary(watch)
    nouns = kind_of(watch.objects.policy.spec.store).nouns
    if output is not OutputFormat.TABLE:
        emit(data, output)
        return
    print_pairs(
        [
            ("Policy", data["policy"]),
            ("Jobs", f"{data['succeeded']} succeeded, {data['faulty']} faulty, {data['unfinished']} not finished"),
            ("Reclaimed", format_bytes(data["bytesReclaimed"])),
            ("Deleted", plural(data["deleted"], nouns.deleted)),
            ("Quarantined", plural(len(data["quarantined"]), nouns.source)),
        ]
    )
    for one in data["quarantined"]:
        click.echo(printable(f"  {one['target']}/{one['source']}: {one['message']}"))


def summary(watch: LocalWatch) -> dict[str, Any]:
    """What became of the run, in exact values."""
    policy, jobs = watch.objects.policy, watch.objects.jobs.values()
    states = [job.status.state for job in jobs]
    return {
        "policy": policy.metadata.name,
        "succeeded": policy.status.succeeded,
        "faulty": policy.status.faulty,
        "unfinished": sum(state not in (JobState.SUCCEEDED, JobState.FAULTY) for state in states),
        "bytesReclaimed": policy.status.bytes_reclaimed,
        "deleted": watch.deleted,
        "quarantined": [source.to_object() for source in policy.status.quarantined],
        "problems": [error.to_object() for error in policy.status.target_errors],
    }
