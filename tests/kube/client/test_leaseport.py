"""The Lease of an election, on a real API server."""

from __future__ import annotations

import asyncio

import pytest

from compaction.errors import NotFoundError
from compaction.kube.client.config import ApiConnection
from compaction.kube.replica.operator import coordinator_lease
from compaction.leases.record import LeaseRecord

pytestmark = pytest.mark.apiserver


def test_a_namespace_that_does_not_exist_is_named_with_the_flag(connection: ApiConnection) -> None:
    """A replica retries for ever: the namespace may come, but the line in its log has to say what is missing."""

    async def main() -> None:
        open_port = coordinator_lease(connection, namespace="nosuchns", name="coordinator", call_deadline=3.0)
        async with open_port() as port:
            await port.create(LeaseRecord())

    with pytest.raises(NotFoundError) as missing:
        asyncio.run(main())
    assert str(missing.value).startswith(
        'Cannot create Lease coordinator: namespace "nosuchns" does not exist. Create it or correct --namespace'
    )
