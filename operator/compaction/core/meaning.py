"""What a reason means to a person: a sentence, what the operator does next, and what a user can do.

The reasons themselves are closed sets elsewhere (api/enums.py, core/planning/candidates.py, the wings); here each gets
its words, and tests/explain checks that none is without. docs/resources.md is the dictionary, these are the sentences
of `kubectl compaction why`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meaning:
    """Texts may hold `{policy}`, `{job}`, `{catalog}` and `{n}` (the flag `-n NAMESPACE`), filled in by `Names`.

    `says`: the state; `next`: what happens without a user; `do`: what a user can do, empty when there is
    nothing to do but wait.
    """

    says: str
    next: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Names:
    """What stands in place of `{policy}`, `{job}`, `{catalog}` and `{n}`."""

    namespace: str
    policy: str = "POLICY"
    job: str = "JOB"
    catalog: str = "CATALOG"

    def fill(self, text: str) -> str:
        """The text with the names in it."""
        return text.format(policy=self.policy, job=self.job, catalog=self.catalog, n=f"-n {self.namespace}")


def meaning_of(words: Mapping[str, Meaning], reason: str) -> Meaning:
    """The meaning of a reason; a newer operator may have written one that is not known here."""
    known = words.get(reason)
    if known is not None:
        return known
    return Meaning(
        says=f"The reason {reason} is not known to this version of the command.",
        next="The message beside it is the operator's own.",
        do="Use the command of the same version as the operator.",
    )
