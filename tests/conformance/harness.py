"""What a kind of store gives to the suite: a store of its own to fill, the view of its readers, and interrupted writes.

The suite fills a store with debt, one target at a time (`fill`), and does with it what the coordinator and a worker do
(`core.Core`): everything else goes through the kind's doors. A harness knows no test, and the suite no kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from compaction.storage.secrets import Secrets


class Fault(Enum):
    """What happens at one write of an attempt."""

    DEATH = "the process dies"
    LOST = "the answer is lost: the write was carried out, and the caller sees an error"


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at call number `at` (0-based) of an attempt, whose `name` is for messages; `when`: before or after the
    call, or during it (half of a write).
    """

    at: int
    when: str
    name: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.fault.value}: {self.when} call {self.at}, {self.name}"


class Calls(Protocol):
    """The calls that an attempt made at its store."""

    @property
    def calls(self) -> list[str]:
        """Names, in order."""
        ...


class Harness(Protocol):
    """An empty store of one kind.

    store: `spec.store` of the policy, as a user writes it.
    secrets: of the policy's namespace.
    death: what a process that dies raises, in the place of its end; no Exception, so that nothing may catch it.
    charged: whether an attempt that fails because the store did not answer counts against the job.
    shares_outputs: outputs are named by their content, so several attempts may write the same one: none deletes what it
        has not committed, and a sweep does when no claim stands.
    indivisible: the sources of a target are compacted together or not at all: a damaged one stops the target.
    """

    store: dict[str, Any]
    secrets: Secrets
    death: type[BaseException]
    charged: bool
    shares_outputs: bool
    indivisible: bool

    def fill(self, number: int) -> None:
        """Add a target with debt that one job works off, out of three sources or more."""
        ...

    def content(self, number: int) -> object:
        """Every record that readers find in the target that `fill(number)` made, in an order of its own."""
        ...

    def opens(self, target: str, source: str) -> bool:
        """Whether a reader that knows the name of a source can still read it."""
        ...

    def damage(self, target: str, source: str) -> Callable[[], object]:
        """Make a source unreadable; what is returned repairs it."""
        ...

    def leftovers(self) -> set[str]:
        """What attempts left on storage that did not commit it."""
        ...

    def replaced(self) -> set[str]:
        """What is on storage although a commit replaced it."""
        ...

    def check(self) -> None:
        """Assert what is true of the store at every moment."""
        ...

    def strikes(self, calls: list[str], fault: Fault) -> Sequence[Strike]:
        """The faults to try, of an attempt that makes these calls: every one of them in a deep run."""
        ...

    def struck(self, strike: Strike | None) -> AbstractContextManager[Calls]:
        """An attempt in it meets the fault; without one its calls are only counted."""
        ...

    def survives(self, strike: Strike) -> bool:
        """Whether an attempt succeeds although this answer was lost."""
        ...

    def later(self) -> AbstractContextManager[object]:
        """As if a month had passed, by the clocks that an adapter is not given."""
        ...
