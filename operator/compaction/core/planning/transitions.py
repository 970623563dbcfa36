"""The state machine of a job, as a table. Whatever changes a job's state goes through `next_state`.

```
Unassigned --assign--> InProgress --succeed--> Succeeded
                        |  ^   |
              end_retry |   |   | end_final
                        v   |   v
                    Abandoned   Faulty --reopen--> Abandoned
```

`adopt` is an assignment found on the job's Lease after a crash between the Lease and the status (its token is larger
than the status knows). A late `succeed` or `end_final` in Abandoned is a report with the token that is still the last
one assigned: no other attempt has started, so the work counts (docs/design/scheduling.md#scenarios-of-the-scheduler,
S10). `refuse` parks a job that waits, tried before or not, because no attempt can succeed: its sources are gone, or not
of the policy's store.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from compaction.api.enums import JobState
from compaction.errors import IllegalTransitionError

UNASSIGNED, IN_PROGRESS, ABANDONED, FAULTY, SUCCEEDED = (
    JobState.UNASSIGNED,
    JobState.IN_PROGRESS,
    JobState.ABANDONED,
    JobState.FAULTY,
    JobState.SUCCEEDED,
)


class JobEvent(StrEnum):
    """What can happen to a job."""

    ASSIGN = "assign"
    ADOPT = "adopt"
    SUCCEED = "succeed"
    END_RETRY = "end_retry"
    END_FINAL = "end_final"
    REFUSE = "refuse"
    REOPEN = "reopen"


TRANSITIONS: Mapping[tuple[JobState, JobEvent], JobState] = MappingProxyType(
    {
        (UNASSIGNED, JobEvent.ASSIGN): IN_PROGRESS,
        (UNASSIGNED, JobEvent.ADOPT): IN_PROGRESS,
        (UNASSIGNED, JobEvent.REFUSE): FAULTY,
        (IN_PROGRESS, JobEvent.ADOPT): IN_PROGRESS,
        (IN_PROGRESS, JobEvent.SUCCEED): SUCCEEDED,
        (IN_PROGRESS, JobEvent.END_RETRY): ABANDONED,
        (IN_PROGRESS, JobEvent.END_FINAL): FAULTY,
        (ABANDONED, JobEvent.ASSIGN): IN_PROGRESS,
        (ABANDONED, JobEvent.ADOPT): IN_PROGRESS,
        (ABANDONED, JobEvent.SUCCEED): SUCCEEDED,
        (ABANDONED, JobEvent.END_FINAL): FAULTY,
        (ABANDONED, JobEvent.REFUSE): FAULTY,
        (FAULTY, JobEvent.REOPEN): ABANDONED,
        (FAULTY, JobEvent.ADOPT): IN_PROGRESS,
    }
)
"""Everything that may happen; any other pair is a defect and raises."""


def next_state(state: JobState, event: JobEvent) -> JobState:
    """The state after `event`.

    Raises:
        IllegalTransitionError: the table has no such transition.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"a job that is {state} cannot {event.replace('_', ' ')}") from None
