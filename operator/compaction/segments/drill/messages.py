"""What the drill and its attempts say to each other: plain data, so that either side can be read without the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class LineKind(StrEnum):
    """Kinds of lines an attempt prints, in the order in which they come."""

    AT_COMMIT = "AtCommit"  # everything is rewritten and verified; waits for a line on stdin
    BELIEVES = "Believes"  # why the attempt knows by itself that its lease is over; empty text: it does not
    ENDED = "Ended"  # its report
    RENEWED = "Renewed"  # one more renewal was accepted
    RENEWAL_REFUSED = "RenewalRefused"
    RENEWAL_UNKNOWN = "RenewalUnknown"  # no answer that says anything


@dataclass(frozen=True, slots=True)
class Order:
    """What an attempt is to do. `spec` is a CompactionJob's; `name` the attempt's, as it stands in the Lease."""

    kubeconfig: str | None
    namespace: str
    name: str
    job: str
    token: int
    lease_seconds: int
    spec: Mapping[str, Any]
    pause: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an attempt. `outcome` and `reason` belong to ENDED."""

    said: LineKind
    text: str
    outcome: str = ""
    reason: str = ""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Line:
        """Of a decoded JSON object. ValueError or KeyError when it is none of an attempt's."""
        return cls(
            LineKind(data["said"]),
            str(data["text"]),
            outcome=str(data.get("outcome", "")),
            reason=str(data.get("reason", "")),
        )
