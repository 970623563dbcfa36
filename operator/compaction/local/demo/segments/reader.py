"""A reader of the live store: keys at random, each compared with what was acknowledged, from beginning to end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from replicated_kv.client import Client
from replicated_kv.errors import KeyValueError
from replicated_kv.workload import Workload

PAUSE_SECONDS: Final = 0.02
REMEMBERED: Final = 3


@dataclass
class KeyReader:
    """Reads until `stopped`; each value comes from the leader's log. For `proving`."""

    workload: Workload
    stopped: threading.Event = field(default_factory=threading.Event)
    read: int = 0
    wrong: list[str] = field(default_factory=list)
    error: KeyValueError | None = None

    def run(self) -> None:
        """One key after the other. Of the wrong ones the first few are kept."""
        random = np.random.default_rng(1)
        with Client(self.workload.members, timeout=self.workload.timeout) as client:
            try:
                while not self.stopped.wait(PAUSE_SECONDS):
                    found = self.workload.check(client, int(random.integers(self.workload.keys)))
                    self.read += 1
                    if found and len(self.wrong) < REMEMBERED:
                        self.wrong.append(found)
            except KeyValueError as error:
                self.error = error

    def line(self) -> str:
        """How it goes, for a person."""
        return f"reader: {self.read} keys right" if not self.wrong else f"reader: WRONG: {self.wrong[0]}"
