"""Looks and sweeps that fail in a way nobody foresaw."""

from __future__ import annotations

from itertools import count
from typing import cast

import structlog.testing

from compaction.api.enums import PolicyReason
from compaction.core.planning.debt import ScanResult
from compaction.kube.scanning import scan, sweep
from compaction.storage.adapter import SWEEP_AGAIN, Sensed, SenseRequest, StoreAdapter, Swept


class Broken:
    def sense(self, request: SenseRequest) -> Sensed:
        raise ValueError(f"embedded null byte in look {min(request.number, 1)}")

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        raise RecursionError("maximum depth")


STORE = cast(StoreAdapter, Broken())


def read(number: int, before: ScanResult | None = None) -> Sensed:
    clock = count(100.0)
    return scan(STORE, SenseRequest(number, 7, 99.0), root="/ra", before=before, clock=lambda: next(clock))


def test_a_look_becomes_a_reading_with_the_reason() -> None:
    reading = read(1).reading
    assert (reading.number, reading.generation, reading.started, reading.ended) == (1, 7, 99.0, 100.0)
    assert reading.problem is not None
    assert (reading.problem.target, reading.problem.reason) == ("/ra", PolicyReason.SENSE_FAILED)
    assert "ValueError: embedded null byte" in reading.problem.message


def test_the_traceback_is_logged_once() -> None:
    with structlog.testing.capture_logs() as logs:
        read(2, before=read(1).reading)
    assert [bool(entry["exc_info"]) for entry in logs] == [True, False]


def test_a_sweep_is_repeated_later() -> None:
    assert sweep(STORE, root="/ra", active=frozenset()).sweep_in == SWEEP_AGAIN
