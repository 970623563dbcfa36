"""A panel of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: what it is called, what it asks (query -> legend), and in which unit the answer is."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    help: str = ""
