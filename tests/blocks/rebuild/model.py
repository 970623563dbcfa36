"""A block store as plain sets, with all that can happen to it: what an index made anew must give back after the loss.

Rows are numbers. The model knows the truth (what readers see); of each object it gives what the footer says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from compaction.blocks.rebuild.lineage import Made, Relative

LEVELS = 4


@dataclass(eq=False)
class Item:
    """A block, or an output that may become one."""

    id: str
    level: int
    rows: frozenset[int]
    made: Made | None = None
    sources: tuple[Item, ...] = ()
    ancestors: frozenset[str] = frozenset()
    state: str = "uploaded"
    buried: int = 0
    job: str = ""


@dataclass(eq=False)
class Try:
    """An attempt: its outputs, and how far it came."""

    job: str
    sources: tuple[Item, ...]
    outputs: tuple[Item, ...]
    alive: bool = True


@dataclass
class StoreModel:
    """`objects` are there; `lost` are rows that expired or were dropped: they may come back."""

    chance: Random
    ending: bool
    """Whether blocks expire and are dropped."""
    telling: bool = True
    """Whether outputs say what their sources were made of."""
    blocks: list[Item] = field(default_factory=list)
    objects: dict[str, Item] = field(default_factory=dict)
    tries: list[Try] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    clock: int = 0

    def live(self) -> list[Item]:
        return [block for block in self.blocks if block.state == "live"]

    def rows(self) -> Counter[int]:
        """What readers see."""
        return Counter(row for block in self.live() for row in block.rows)

    def relatives(self) -> list[Relative]:
        """What an index is made from."""
        found = [Relative(item.id, item.level, item.made) for item in self.objects.values()]
        self.chance.shuffle(found)
        return found

    def step(self) -> None:
        self.clock += 1
        steps = [
            (4, self.write), (4, self.begin), (6, self.upload), (5, self.commit), (1, self.give_up), (6, self.sweep),
            (1, self.collect), (1 if self.ending else 0, self.end),
        ]  # fmt: skip
        (run,) = self.chance.choices([item for _, item in steps], [weight for weight, _ in steps])
        run()

    def write(self) -> None:
        block = Item(f"w{self.clock}", 0, frozenset(range(self.clock * 10, self.clock * 10 + 4)), state="live")
        self.blocks.append(block)
        self.objects[block.id] = block

    def begin(self) -> None:
        """Claim blocks that no other attempt has, or those of an attempt that is believed dead."""
        level = self.chance.randrange(LEVELS - 1)
        free = [block for block in self.live() if block.level == level and not block.job]
        if self.tries and self.chance.random() < 0.3:
            old = self.chance.choice(self.tries)
            if any(block.state != "live" or block.job not in {"", old.job} for block in old.sources):
                return
            job, sources = old.job, old.sources
            if old.alive and len(sources) > 1 and self.chance.random() < 0.3:
                self._release(job)
                job, sources = f"j{self.clock}", sources[1:]
        elif free:
            sources = tuple(self.chance.sample(free, self.chance.randint(1, min(3, len(free)))))
            job = f"j{self.clock}"
        else:
            return
        for item in self.tries:
            if item.job == job:
                item.alive = False
        self._release(job)
        for block in sources:
            block.job = job
        self.tries.append(self._attempt(job, sources, self.chance.randint(1, 3)))

    def _attempt(self, job: str, sources: tuple[Item, ...], parts: int) -> Try:
        rows = sorted(row for block in sources for row in block.rows)
        level = sources[0].level + (2 if self.chance.random() < 0.1 else 1)
        ids = tuple(f"o{self.clock}.{part}" for part in range(parts))
        names = tuple(block.id for block in sources)
        older = frozenset().union(*({b.id for b in block.sources} | block.ancestors for block in sources))
        marks = tuple(map(hash, older)) if self.telling else ()
        outputs = tuple(
            Item(
                ids[part],
                level,
                frozenset(rows[part::parts]),
                Made(job, self.clock, part, parts, names, ids, marks, 0.0),
                sources,
                older,
            )
            for part in range(parts)
        )
        return Try(job, sources, outputs)

    def _release(self, job: str) -> None:
        for block in self.blocks:
            if block.job == job:
                block.job = ""

    def upload(self) -> None:
        """Any attempt uploads, also one that is believed dead."""
        waiting = [(each, item) for each in self.tries for item in each.outputs if item.state == "uploaded"]
        waiting = [(each, item) for each, item in waiting if item.id not in self.objects]
        waiting = [(each, item) for each, item in waiting if each.alive or self.chance.random() < 0.3]
        if waiting:
            _, item = self.chance.choice(waiting)
            # What it reads must still be there.
            if all(source.id in self.objects for source in item.sources):
                assert item.made is not None
                item.made = item.made._replace(modified=float(self.clock))
                self.objects[item.id] = item

    def commit(self) -> None:
        ready = [
            each
            for each in self.tries
            if each.alive
            and all(item.id in self.objects for item in each.outputs)
            and all(block.state == "live" and block.job == each.job for block in each.sources)
        ]
        if not ready:
            return
        one = self.chance.choice(ready)
        one.alive = False
        for block in one.sources:
            self._bury(block)
        for item in one.outputs:
            item.state = "live"
            self.blocks.append(item)

    def _bury(self, block: Item) -> None:
        block.state, block.job, block.buried = "tombstoned", "", self.clock

    def give_up(self) -> None:
        alive = [item for item in self.tries if item.alive]
        if alive:
            one = self.chance.choice(alive)
            one.alive = False
            self._release(one.job)

    def end(self) -> None:
        if live := self.live():
            block = self.chance.choice(live)
            self._bury(block)
            self.lost |= block.rows

    def sweep(self) -> None:
        """A batch of those that are due; the process may die between the deletion and its confirmation."""
        standing = [block for block in self.blocks if block.state == "tombstoned"]
        first = dict.fromkeys(range(LEVELS + 2), self.clock)
        for block in standing:
            first[block.level] = min(first[block.level], block.buried)
        due = [b for b in standing if all(first[level] >= b.buried for level in range(b.level))]
        for block in self.chance.sample(due, min(len(due), self.chance.randint(1, 4))):
            self.objects.pop(block.id, None)
            if self.chance.random() < 0.9:
                block.state = "deleted"

    def collect(self) -> None:
        """Some of what no open claim may still commit."""
        for each in self.tries:
            for item in each.outputs:
                if not each.alive and item.state == "uploaded" and self.chance.random() < 0.3:
                    self.objects.pop(item.id, None)
