"""A steady load of overwrites and deletions, and the comparison of every key with what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from replicated_kv.client import PAGE, Client
from replicated_kv.machine import Command
from replicated_kv.members import Members

BATCH: Final = 32
DELETED: Final = 16
"""So often a change is a deletion: each version of a key whose number is a multiple of this."""
REMEMBERED: Final = 3
PREFIX: Final = b"load-"


def key_of(number: int) -> bytes:
    return PREFIX + b"%06d" % number


def value_of(number: int, version: int, size: int) -> bytes | None:
    """What a key holds after this many changes; None when the last one deleted it, or there was none yet."""
    if version % DELETED == 0:
        return None
    return (b"%s version %d;" % (key_of(number), version)).ljust(size, b".")


def version_in(value: bytes) -> int:
    """The version that a value says it is; -1 for one that the load did not write."""
    words = value.partition(b";")[0].split(b" ")
    return int(words[2]) if len(words) == 3 and words[2].isdigit() else -1


@dataclass(frozen=True, slots=True)
class Comparison:
    """One member against what was acknowledged: how many keys it has, and those that are wrong or missing."""

    member: str
    keys: int
    different: tuple[str, ...]


@dataclass
class Workload:
    """Writes until `stopped`: batches of changes of random keys, a pause of so many seconds after each.

    `acknowledged`, `tried`: the version of each key that the store has acknowledged, and the last one that it may have;
    they differ only while a batch is on its way. `moments`: when batches were acknowledged, monotonic seconds.
    """

    members: Members
    keys: int = 2000
    value_bytes: int = 1024
    pause: float = 0.0
    seed: int = 0
    timeout: float = 120.0
    stopped: threading.Event = field(default_factory=threading.Event)
    acknowledged: list[int] = field(init=False)
    tried: list[int] = field(init=False)
    moments: list[float] = field(default_factory=list)
    written: int = 0
    last_index: int = 0
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.acknowledged = [0] * self.keys
        self.tried = [0] * self.keys
        self._random = np.random.default_rng(self.seed)

    def run(self) -> None:
        """For a thread of its own. What ends it too early is in `error`."""
        try:
            with Client(self.members, timeout=self.timeout) as client:
                while not self.stopped.is_set():
                    self.step(client)
                    self.stopped.wait(self.pause)
        except Exception as error:  # noqa: BLE001  # reported by whoever joins the thread
            self.error = error

    def clear(self, client: Client) -> None:
        """Delete what an earlier load has left of these keys. UnavailableError."""
        commands = [Command.delete(key_of(number)) for number in range(self.keys)]
        for begin in range(0, self.keys, PAGE):
            self.last_index = client.write(commands[begin : begin + PAGE])

    def step(self, client: Client) -> None:
        """One batch of changes, acknowledged. UnavailableError."""
        numbers = self._random.choice(self.keys, min(BATCH, self.keys), replace=False).tolist()
        commands = []
        for number in numbers:
            self.tried[number] += 1
            value = value_of(number, self.tried[number], self.value_bytes)
            commands.append(Command.delete(key_of(number)) if value is None else Command.put(key_of(number), value))
        self.last_index = client.write(commands)
        for number in numbers:
            self.acknowledged[number] = self.tried[number]
        self.written += len(numbers)
        self.moments.append(time.monotonic())

    def check(self, client: Client, number: int) -> str:
        """Read one key from the leader while the load goes on: what is wrong, empty when nothing is.

        UnavailableError.
        """
        before = self.acknowledged[number]
        value = client.get(key_of(number))
        versions = range(before, self.tried[number] + 1)
        if value in [value_of(number, version, self.value_bytes) for version in versions]:
            return ""
        found = "nothing" if value is None else f"version {version_in(value)}"
        return f"{key_of(number).decode()} holds {found}, not version {before} to {versions[-1]}"

    def compare(self, client: Client, member: str) -> Comparison:
        """Every key of one member, read back from its log, with what was acknowledged. For after the load; keys that
        are not the load's do not count.

        UnavailableError: the member does not apply all that was acknowledged. OSError, KeyValueError.
        """
        client.wait_applied(member, self.last_index)
        held = {key: value for key, value in client.scan(member) if key.startswith(PREFIX)}
        expected = {
            key_of(number): value
            for number, version in enumerate(self.acknowledged)
            if (value := value_of(number, version, self.value_bytes)) is not None
        }
        wrong = sorted(key for key in held.keys() | expected.keys() if held.get(key) != expected.get(key))
        return Comparison(member, len(held), tuple(key.decode(errors="replace") for key in wrong))


def difference(comparisons: Sequence[Comparison]) -> str:
    """What is wrong, in a sentence; empty when nothing is."""
    return "; ".join(
        f"{comparison.member}: {len(comparison.different)} keys differ ({', '.join(comparison.different[:REMEMBERED])})"
        for comparison in comparisons
        if comparison.different
    )
