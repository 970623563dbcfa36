"""The kind in the registry of this process, for a while: the models are the same objects for all tests of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from compaction import registry
from compaction.api import extend
from compaction.api.job.job import CompactionJob, CompactionJobSpec, JobParameters, JobSources
from compaction.api.policy.store import STORES, StoreSpec
from conformance.lines.kind import LINES


@contextmanager
def registered() -> Iterator[None]:
    """Register the kind, and take it out of the unions again."""
    kinds, stores, info = registry.KINDS, list(STORES), CompactionJob.INFO
    rules = StoreSpec.RULES, CompactionJobSpec.RULES
    fields = {union: dict(union.__pydantic_fields__) for union in (StoreSpec, JobSources, JobParameters)}
    registry.register(LINES)
    try:
        yield
    finally:
        registry.KINDS, STORES[:], CompactionJob.INFO = kinds, stores, info
        StoreSpec.RULES, CompactionJobSpec.RULES = rules
        for union, before in fields.items():
            union.__pydantic_fields__.clear()
            union.__pydantic_fields__.update(before)
        for model in extend._REBUILT:
            model.model_rebuild(force=True)
