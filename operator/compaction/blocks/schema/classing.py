"""The classes of the blocks that wait: which of a tenant's shard may be merged with one another, by their schemas.

A schema counts from when a block of it is seen until the queue is read again. As long as the classes of the blocks that
were seen stay together and apart as they are, others join them or make classes of their own; when they do not (a column
that only some of them had has another type in a new block), `learn` says so, and the queue is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from compaction.blocks.index.queue import QueueEntry
from compaction.blocks.planning.rules import NO_ROWS, BlockClass

if TYPE_CHECKING:
    import pyarrow as pa

    from compaction.blocks.schema.classes import ColumnConflict

LookUp: TypeAlias = "Callable[[Mapping[str, Sequence[str]]], Mapping[str, pa.Schema]]"
"""From ids of schemas, with ids of blocks that have each, to those of the schemas that are known."""
EXAMPLES: Final = 3
"""Blocks that are asked for a schema at most."""


@dataclass(slots=True)
class _Several:
    """The schemas of a tenant's shard that has several: the class of each. `unknown`: of some nothing is known yet."""

    classes: dict[str, BlockClass]
    unknown: bool = False


class BlockClasses:
    """Classes of one store. A schema that nothing is known of is a class of its own, until it is."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._places: dict[tuple[str, int], BlockClass | _Several] = {}
        """By tenant and shard. Nearly all have one schema, and there may be half as many places as blocks."""
        self._examples: dict[str, list[str]] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._empty: dict[tuple[str, int], BlockClass] = {}
        self.has_several = False
        """Whether there may be a place whose blocks are of several classes."""

    def learn(self, entries: Iterable[QueueEntry]) -> bool:
        """Take in the schemas of blocks. False: blocks that were seen before are of other classes now.

        Raises what `look_up` raises.
        """
        places = self._places
        fresh = {place: set[str]() for place, one in places.items() if isinstance(one, _Several) and one.unknown}
        for entry in entries:
            if not entry.rows:
                continue
            place, schema = (entry.tenant, entry.shard), entry.schema_id
            known = places.get(place)
            if known is None:
                places[place] = BlockClass(entry.tenant, entry.shard, schema)
            elif known.schema == schema if isinstance(known, BlockClass) else schema in known.classes:
                continue
            else:
                fresh.setdefault(place, set()).add(schema)
            examples = self._examples.setdefault(schema, [])
            if len(examples) < EXAMPLES and entry.id not in examples:
                examples.append(entry.id)
        # A schema that is alone in its place is a class whatever it holds.
        found = {place: self._classes(place) for place in sorted(fresh)}
        asked = {name for place, classes in found.items() for name in (*classes, *fresh[place])} - self._schemas.keys()
        self._schemas |= self._look_up({name: self._examples[name] for name in sorted(asked)}) if asked else {}
        stay = [self._classify(place, classes, fresh[place]) for place, classes in found.items()]
        return all(stay)

    def of(self, tenant: str, shard: int, schema: str) -> BlockClass:
        """The class of a block of a schema that was learnt, or of NO_ROWS."""
        if schema == NO_ROWS:
            return self._empty.setdefault((tenant, shard), BlockClass(tenant, shard, NO_ROWS))
        found = self._places[tenant, shard]
        return found if isinstance(found, BlockClass) else found.classes[schema]

    def conflicts(self, classes: Iterable[BlockClass]) -> tuple[ColumnConflict, ...]:
        """Why classes of one place are not one; empty when nothing is known of them."""
        from compaction.blocks.schema.classes import classes_of

        wanted = set(classes)
        schemas = {
            name: self._schemas[name]
            for place in {(one.tenant, one.shard) for one in wanted}
            for name, one in self._classes(place).items()
            if one in wanted and name in self._schemas
        }
        return classes_of(schemas).conflicts

    def _classes(self, place: tuple[str, int]) -> Mapping[str, BlockClass]:
        found = self._places[place]
        return {found.schema: found} if isinstance(found, BlockClass) else found.classes

    def _classify(self, place: tuple[str, int], former: Mapping[str, BlockClass], fresh: Iterable[str]) -> bool:
        """Put the schemas of a place into classes. False: those that were in one are not as they were."""
        # A store of one schema needs nothing that reads Parquet, which takes longer to import than to ask the index.
        from compaction.blocks.schema.classes import classes_of

        names = former.keys() | set(fresh)
        known = {name: self._schemas[name] for name in sorted(names) if name in self._schemas}
        unknown = sorted(names - known.keys())
        found = (*classes_of(known).classes(), *(frozenset({name}) for name in unknown))
        before = [{former[name] for name in one if name in former} for one in found]
        stays = all(len(one) <= 1 for one in before) and sum(map(len, before)) == len(set().union(*before))
        classes: dict[str, BlockClass] = {}
        for one, kin in zip(found, before, strict=True):
            classes |= dict.fromkeys(one, min(kin) if stays and kin else BlockClass(*place, min(one)))
        self._places[place] = _Several(classes, unknown=bool(unknown))
        self.has_several |= len(found) > 1
        return stays
