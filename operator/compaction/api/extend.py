"""Another kind of store in the unions of the resources, at run time.

The two kinds that ship are members of the unions by their text. A kind that lives elsewhere (the tests have one) is
added before anything is read: by `registry.register`, which calls `add_member`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from compaction.api.job.job import CompactionJob, CompactionJobSpec, JobParameters, JobSources, job_members, job_rules
from compaction.api.members import StoreMember
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.policy.policy_spec import CompactionPolicySpec
from compaction.api.policy.policy_status import CompactionPolicyStatus
from compaction.api.policy.store import STORES, StoreSpec, exactly_one_store

_REBUILT: Final[tuple[type[BaseModel], ...]] = (
    StoreSpec,
    CompactionPolicySpec,
    CompactionPolicyStatus,
    CompactionPolicy,
    JobSources,
    JobParameters,
    CompactionJobSpec,
    CompactionJob,
)
"""Parts before what they are parts of."""


def add_member(store: StoreMember) -> None:
    """Add a kind to `spec.store`, and its types of jobs to `spec.sources` and `spec.parameters`; resource definitions
    that are generated afterwards have it. Adding it twice does nothing.

    Raises:
        ValueError: the name of the kind, of a member or of a type of job is taken.
    """
    if store in STORES:
        return
    _check_free(store)
    STORES.append(store)
    _add(StoreSpec, store.member, store.model, store.help)
    for job in store.jobs:
        _add(JobSources, job.member, job.sources, f"{job.help}, for a job of kind {job.name}.")
        _add(JobParameters, job.member, job.parameters, f"Parameters of a job of kind {job.name}.")
    StoreSpec.RULES = exactly_one_store()
    CompactionJobSpec.RULES = job_rules()
    # The reason stays the last column.
    *first, reason = CompactionJob.INFO.columns
    columns = (*first, *(job.column for job in store.jobs), reason)
    CompactionJob.INFO = replace(CompactionJob.INFO, columns=columns)
    for model in _REBUILT:
        model.model_rebuild(force=True)


def _check_free(store: StoreMember) -> None:
    stores = {name for store in STORES for name in (store.name, store.member)}
    jobs = {name for member in job_members() for name in (member.name, member.member)}
    taken = stores & {store.name, store.member} | jobs & {name for job in store.jobs for name in (job.name, job.member)}
    if taken:
        raise ValueError(f"kind of store {store.name}: another kind has {', '.join(sorted(taken))} already")


def _add(union: type[BaseModel], name: str, model: type[BaseModel], text: str) -> None:
    alias = union.model_config["alias_generator"]
    assert callable(alias), "every model of the resources has one"
    wire = alias(name)
    union.__pydantic_fields__[name] = FieldInfo(
        annotation=model | None,  # type: ignore[arg-type]  # a union is a form, not a type
        default=None,
        alias=wire,
        validation_alias=wire,
        serialization_alias=wire,
        alias_priority=1,
        description=text,
    )
