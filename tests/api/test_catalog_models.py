"""CatalogCompaction in Python: rules, defaults, bounds of the status, and what each reason means for conditions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from compaction.api.catalog.catalog import (
    MAX_PARTICIPANTS,
    PASSING,
    STANDING,
    CatalogCompaction,
    CatalogCompactionStatus,
    CatalogReason,
    ParticipantStatus,
    standing_of,
)
from compaction.api.catalog.reasons import OUTCOMES, Outcome, Reason
from compaction.api.policy.store import PolicyStanding
from support.cluster.catalog_manifests import ACCEPTED, REFUSED, catalog_object


@pytest.mark.parametrize(("spec", "advice"), [item[1:] for item in REFUSED], ids=[item[0] for item in REFUSED])
def test_a_wrong_spec_gets_advice(spec: dict[str, Any], advice: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        CatalogCompaction.from_object(catalog_object(**spec))
    assert advice in str(refusal.value)


@pytest.mark.parametrize("spec", ACCEPTED)
def test_a_right_spec_survives_the_way_to_the_server_and_back(spec: dict[str, Any]) -> None:
    found = CatalogCompaction.from_object(catalog_object(**spec))
    assert CatalogCompaction.from_object(found.to_object()) == found


def test_the_secrets_that_a_round_needs() -> None:
    spec = CatalogCompaction.from_object(catalog_object()).spec
    assert spec.secret_names == ("etcd", "participants")
    both = {"participants": {"urls": [{"name": "a", "url": "http://a"}], "token": {"secretName": "etcd"}}}
    assert CatalogCompaction.from_object(catalog_object(**both)).spec.secret_names == ("etcd",)
    own = {"participants": both["participants"] | {"token": None, "serviceAccountToken": {"secretName": "authority"}}}
    own["participants"] = {key: value for key, value in own["participants"].items() if value is not None}
    assert CatalogCompaction.from_object(catalog_object(**own)).spec.secret_names == ("etcd", "authority")


def test_the_status_keeps_its_bounds_whatever_participants_are_called() -> None:
    many = tuple(ParticipantStatus(name=f"p{n % 150}" + "x" * 1000, reason="Answered") for n in range(300))
    status = CatalogCompactionStatus(participants=many)
    assert len(status.participants) == MAX_PARTICIPANTS
    assert all(len(participant.name) <= 512 for participant in status.participants)


@pytest.mark.parametrize(
    ("earliest", "latest", "debt"), [(None, None, 0), (1, None, 0), (4, 5, 0), (5, 5, 0), (1, 6, 4)]
)
def test_the_debt_of_a_history(earliest: int | None, latest: int | None, debt: int) -> None:
    assert CatalogCompactionStatus(earliest_version=earliest, latest_version=latest).debt_versions == debt


def test_every_reason_stands_somewhere() -> None:
    assert set(STANDING) == set(CatalogReason)
    for reason in Reason:
        working = standing_of(reason, lasts=True) is PolicyStanding.WORKING
        assert working == (reason in PASSING)
        at_once = standing_of(reason, lasts=False) is PolicyStanding.STALLED
        assert at_once == (reason in ("SecretMissing", "PermissionDenied"))
    assert all(OUTCOMES[reason] is not Outcome.FAILED for reason in PASSING)
