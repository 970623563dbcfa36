"""CatalogCompaction on a real API server: defaults, refusals, columns, status."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from compaction.api.base import timestamp_from_epoch
from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, ProcessStatus, RequiredTime
from compaction.api.catalog.reasons import Outcome
from compaction.api.conditions import set_ready
from compaction.local.cluster.control_plane import AdminAnswer
from support.cluster.catalog_manifests import ACCEPTED, REFUSED, catalog_object

pytestmark = pytest.mark.apiserver

DryRun = Callable[[dict[str, Any]], AdminAnswer]
NOW = timestamp_from_epoch(1_750_000_000)


@pytest.mark.parametrize(("spec", "advice"), [item[1:] for item in REFUSED], ids=[item[0] for item in REFUSED])
def test_the_server_refuses_with_the_same_advice(dry_run: DryRun, spec: dict[str, Any], advice: str) -> None:
    answer = dry_run(catalog_object(**spec))
    assert answer.status == 422, answer.text
    assert advice in answer.text


@pytest.mark.parametrize("spec", ACCEPTED)
def test_the_server_fills_in_the_defaults_of_the_models(dry_run: DryRun, spec: dict[str, Any]) -> None:
    answer = dry_run(catalog_object(**spec))
    assert answer.ok, answer.text
    stored = answer.json()
    assert stored["spec"] == CatalogCompaction.from_object(catalog_object(**spec)).to_object()["spec"]
    assert stored["status"] == {"observedGeneration": -1}


def test_columns_show_who_pins_the_history(kubectl: Any, namespace: str) -> None:
    kubectl("create", "-f", "-", namespace=namespace, input=json.dumps(catalog_object()))
    conditions = set_ready((), reason="Transaction", message="waits", observed_generation=1, now=NOW)
    status = CatalogCompactionStatus(
        observed_generation=1,
        conditions=conditions,
        earliest_version=3,
        latest_version=9,
        versions_cut=2,
        required_time=RequiredTime(value=1, time=NOW, reason="Transaction", participant="orders-2", subject="t"),
        compaction=ProcessStatus(outcome=Outcome.SKIPPED, reason="Transaction", finished_at=NOW),
    )
    patch = json.dumps({"status": status.to_object()})
    kubectl("patch", "ccat/orders", "--subresource=status", "--type=merge", "-p", patch, namespace=namespace)
    header, row = kubectl("get", "ccat", namespace=namespace).stdout.splitlines()
    columns = dict(zip(header.split(), row.split(), strict=False))
    assert columns["READY"] == "True"
    assert (columns["REASON"], columns["PIN"], columns["BY"]) == ("Transaction", "Transaction", "orders-2")
    assert (columns["EARLIEST"], columns["LATEST"]) == ("3", "9")
    wide = kubectl("get", "catalogcompaction", "-o", "wide", namespace=namespace).stdout
    assert "waits" in wide
    assert "orders" in kubectl("get", "compaction", namespace=namespace).stdout
