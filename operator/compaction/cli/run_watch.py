"""`compactor run --watch`: the policy's file, what is told while it runs, and the summary at its end.

Exit codes: 0 stopped by SIGINT or SIGTERM; 1 it could not begin; 2 wrong usage.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final, TextIO

import click

from compaction.api.enums import JobState
from compaction.api.formatting import format_bytes, plural
from compaction.api.manifest import load_policies
from compaction.api.names import ANNOTATION_APPROVE
from compaction.api.policy import CompactionPolicy
from compaction.api.text import printable
from compaction.cli.errors import report
from compaction.cli.output import OutputFormat, emit, print_pairs
from compaction.cli.progress_bar import ProgressBar
from compaction.cli.run_engine import spark
from compaction.exceptions import CompactionError, InvalidManifestError
from compaction.local.news import PLAN_PENDING, News
from compaction.local.run import WORKER
from compaction.local.watch import LocalWatch
from compaction.stores.adapters import open_store

LOCK_TIMEOUT: Final = 30.0
"""Seconds that a local run waits for a log's lock: there is nothing else it could do meanwhile."""


class PolicyFile:
    """The one policy of a file; `reread` has it anew when the file has changed.

    What is wrong with the file at the beginning is wrong usage (exit code 2); later it is told, and the policy stays.
    """

    def __init__(self, source: TextIO, *, wanted: str | None, approved: str | None) -> None:
        self._wanted = wanted
        self._approved = approved
        self.path = Path(source.name) if source.name != "<stdin>" else None
        self._seen = self._version()
        try:
            self.policy = self._read(source.read(), source.name)
        except (InvalidManifestError, UnicodeDecodeError) as error:
            raise click.UsageError(str(error)) from error

    def reread(self) -> CompactionPolicy | None:
        """The policy, when the file has changed since; None when it has not, or cannot be read."""
        version = self._version()
        if self.path is None or version in (None, self._seen):
            return None
        self._seen = version
        try:
            changed = self._read(self.path.read_text(encoding="utf-8"), str(self.path))
        except (InvalidManifestError, UnicodeDecodeError, OSError) as error:
            report(CompactionError(f"{error}; the policy stays as it was"))
            return None
        if changed == self.policy:
            return None
        self.policy = changed
        return changed

    def _version(self) -> tuple[int, int, int] | None:
        """What tells one version of the file from another; None when it is gone (an editor may be replacing it)."""
        if self.path is None:
            return None
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self, text: str, name: str) -> CompactionPolicy:
        policies = load_policies(text, source=name)
        names = ", ".join(policy.metadata.name for policy in policies)
        chosen = [policy for policy in policies if self._wanted in (None, policy.metadata.name)]
        if not chosen:
            raise InvalidManifestError(f"{name}: no policy {self._wanted}; there are {names}")
        if len(chosen) > 1:
            raise InvalidManifestError(f"{name} holds several policies, choose one with --policy: {names}")
        policy = chosen[0]
        if self._approved is None or ANNOTATION_APPROVE in policy.metadata.annotations:
            return policy
        annotations = {**policy.metadata.annotations, ANNOTATION_APPROVE: self._approved}
        return policy.model_copy(update={"metadata": policy.metadata.model_copy(update={"annotations": annotations})})


def keep_compacted(file: PolicyFile, output: OutputFormat) -> None:
    """Run until a signal, telling on standard error what happens; then print the summary."""
    with ProgressBar() as bar:
        watch = LocalWatch(
            file.policy,
            open_store=lambda policy: open_store(policy.spec, holder=WORKER, lock_timeout=LOCK_TIMEOUT),
            open_runner=lambda policy: spark(policy, bar),
            reread=file.reread,
            tell=lambda news: bar.line(_line(news, file)),
            progress=bar.note,
        )
        _stop_on_signals(watch)
        watch.run()
    _show(watch, output)


def _stop_on_signals(watch: LocalWatch) -> None:
    """The first signal ends it in order, a second one at once."""

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        watch.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


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
    if output is not OutputFormat.TABLE:
        emit(data, output)
        return
    print_pairs(
        [
            ("Policy", data["policy"]),
            ("Jobs", f"{data['succeeded']} succeeded, {data['faulty']} faulty, {data['unfinished']} not finished"),
            ("Reclaimed", format_bytes(data["bytesReclaimed"])),
            ("Deleted", plural(data["deleted"], "replaced file")),
            ("Set aside", plural(len(data["quarantined"]), "segment")),
        ]
    )
    for one in data["quarantined"]:
        click.echo(printable(f"  {one['log']}/{one['segment']}: {one['message']}"))


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
        "problems": [error.to_object() for error in policy.status.log_errors],
    }
