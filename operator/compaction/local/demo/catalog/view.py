"""What one sees of a catalog: a line for each change, and the receipt at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.table import Table

from compaction.api.catalog.resource import CatalogCompaction
from compaction.api.text.formatting import format_bytes
from compaction.local.demo.catalog.proof import Story
from compaction.local.demo.catalog.prover import Prover
from compaction.local.demo.catalog.scenes import status_of
from compaction.local.demo.view import MISSING, table_of

LINE_SECONDS: Final = 5.0
"""So often at least a line, as the reader goes on."""


@dataclass
class Lines:
    """One line when the catalog's state has changed, and now and then one for the reader."""

    console: Console
    prover: Prover
    began: float = field(default_factory=time.monotonic)
    _last: str = ""
    _said: float = 0.0

    def show(self, catalog: CatalogCompaction) -> None:
        """The state of this moment."""
        now, state = time.monotonic(), status_of(catalog)
        if state == self._last and now - self._said < LINE_SECONDS:
            return
        self._last, self._said = state, now
        self.say(f"{state}; {reader_line(self.prover)}")

    def say(self, line: str) -> None:
        """A line with the seconds since the beginning."""
        seconds = int(time.monotonic() - self.began)
        self.console.print(f"{seconds:4d} s  {line}", highlight=False, markup=False, soft_wrap=True)


def reader_line(prover: Prover) -> str:
    """How it goes for the reader."""
    wrong = f", {prover.wrong} DIFFERENT" if prover.wrong else ""
    return f"reader: {prover.proven} times equal{wrong}, {prover.refused} refused"


def pins_table(story: Story) -> Table:
    """Each pin with its time, where history began, and what released it."""
    table = table_of(("PIN", "SUBJECT", "SINCE", "HISTORY BEGINS AT", "RELEASED BY"))
    for one in story.shown:
        ended = one.status.compaction
        subject = MISSING if ended is None else ended.subject or MISSING
        table.add_row(one.scene.title, subject, _time(one.since), str(one.status.earliest_version), one.scene.released)
    return table


def receipt_table(story: Story) -> Table:
    """What was there, what is left, and what was proven meanwhile."""
    prover, before, after = story.prover, story.before, story.after
    table = table_of(("RECEIPT", "BEFORE", "AFTER"))
    table.add_row("versions in etcd", str(before.versions), str(after.versions))
    table.add_row("bytes in etcd", format_bytes(before.bytes), format_bytes(after.bytes))
    table.add_row("first version", "1", str(story.status.earliest_version))
    table.add_row("times proven equal", "", str(prover.proven))
    table.add_row("times refused", "", str(prover.refused))
    table.add_row("different", "", str(prover.wrong))
    return table


def _time(moment: datetime | None) -> str:
    return MISSING if moment is None else f"{moment:%H:%M:%S}"
