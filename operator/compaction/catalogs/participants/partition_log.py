"""The log of a partition: what a minimum goes through before it counts
(docs/design/catalog-compaction.md#published-minimums).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compaction.catalogs.participants.report import Role


@dataclass(slots=True)
class PartitionLog:
    """Indexes ascend from 1. `applied`: of the last command that storage has; `durable`: of the last one that a
    checkpoint holds. `commands`: (index, timestamp) of those after it, which a restart replays.
    """

    role: Role
    applied: int = 0
    durable: int = 0
    commands: list[tuple[int, int]] = field(default_factory=list)

    def append(self, timestamp: int) -> None:
        """A command with a minimum, applied at once."""
        self.applied += 1
        self.commands.append((self.applied, timestamp))

    def checkpointed(self, index: int) -> None:
        """A checkpoint that began when `index` was applied has succeeded."""
        self.durable = max(self.durable, index)
        self.commands = [one for one in self.commands if one[0] > self.durable]

    def replay(self) -> list[int]:
        """A restart: storage is what the last checkpoint holds, and the commands after it are applied again. Earlier
        ones are not: they publish nothing a second time. The minimums that are applied, in order.
        """
        self.applied = self.durable + len(self.commands)
        return [timestamp for _, timestamp in self.commands]
