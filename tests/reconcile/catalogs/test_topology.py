"""Declared assignments by zone: names are resolved in the history, ranges and entries add up."""

from __future__ import annotations

from compaction.api.catalog.catalog_spec import PartitionAssignment, TopologySpec
from compaction.catalogs.commands.zone_commands import AlterZone, CreateZone, DropZone, RenameZone
from compaction.catalogs.compaction.round import topology_of, with_assignments
from support.catalogs.rounds import Story


def assigned(zone: str, *names: str, first: int = 0, last: int = 64_999) -> PartitionAssignment:
    return PartitionAssignment(zone=zone, participants=names, first_partition=first, last_partition=last)


def test_entries_of_a_zone_add_up_and_the_rest_is_unassigned() -> None:
    story = Story()
    story.run(CreateZone("Z", ("p",), partitions=4))
    zone = story.latest.zone("Z")
    assert zone is not None
    spec = TopologySpec(
        assignments=(assigned("Z", "a", last=2), assigned("Z", "b", first=1, last=1), assigned("OTHER", "c"))
    )
    found = with_assignments(topology_of(spec, frozenset({"a"})), spec, story.history)
    a, both = frozenset({"a"}), frozenset({"a", "b"})
    assert found.assignments == {zone.id: (a, both, a, None)}
    assert found.unknown_zones == ("OTHER",)


def test_a_zone_that_was_dropped_is_unknown_when_no_version_has_it() -> None:
    story = Story()
    story.run(CreateZone("Z", ("p",), partitions=4))
    story.run(DropZone("Z"))
    spec = TopologySpec(assignments=(assigned("Z", "a"), assigned("Z", "b", first=2)))
    asked = topology_of(spec, frozenset({"a"}))
    assert with_assignments(asked, spec, story.history).unknown_zones == ()
    story.cut(story.latest.version)
    assert with_assignments(asked, spec, story.history).unknown_zones == ("Z",)


def test_a_zone_keeps_its_assignments_over_a_rename() -> None:
    story = Story()
    story.run(CreateZone("OLD", ("p",), partitions=2))
    story.run(RenameZone("OLD", "NEW"))
    zone = story.latest.zone("NEW")
    assert zone is not None
    for name in ("OLD", "NEW"):
        spec = TopologySpec(assignments=(assigned(name, "a"),))
        found = with_assignments(topology_of(spec, frozenset()), spec, story.history)
        assert found.assignments == {zone.id: (frozenset({"a"}),) * 2}
    story.run(AlterZone("NEW", replicas=2))
    spec = TopologySpec(participants=("a", "b"), min_participants=2)
    found = with_assignments(topology_of(spec, frozenset({"a"})), spec, story.history)
    assert (dict(found.assignments), found.expected, found.least) == ({}, frozenset({"a", "b"}), 2)
