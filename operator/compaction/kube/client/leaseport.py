"""The API server as an election needs it: one Lease, three verbs, a deadline per call that fits the renew deadline."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from compaction.api.names import COMPONENT_COORDINATOR, LABEL_COMPONENT, LABEL_MANAGED_BY, MANAGED_BY
from compaction.errors import NotFoundError
from compaction.kube.client.api import LEASES, ApiCall, ApiClient
from compaction.kube.client.config import ApiConnection
from compaction.leases.election import ElectionPort
from compaction.leases.record import Lease, LeaseRecord


@dataclass(frozen=True, slots=True)
class CoordinatorLease:
    """One named Lease (`leases.election.LeasePort`)."""

    client: ApiClient
    namespace: str
    name: str

    async def get(self) -> Lease:
        """Read it. Raises NotFoundError."""
        return Lease.parse(await self.client.get(LEASES, self.name, namespace=self.namespace))

    async def create(self, record: LeaseRecord) -> Lease:
        """Make it. Raises AlreadyExistsError, NotFoundError when its namespace does not exist."""
        labels = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_COORDINATOR}
        lease = Lease(name=self.name, namespace=self.namespace, record=record, labels=labels)
        try:
            return Lease.parse(await self.client.create(LEASES, lease.body()))
        except NotFoundError as error:
            raise NotFoundError(
                f'Cannot create Lease {self.name}: namespace "{self.namespace}" does not exist. '
                "Create it or correct --namespace, or --lease-namespace where that is given.",
                status=error.status,
                reason=error.reason,
            ) from None

    async def replace(self, lease: Lease) -> Lease:
        """Compare-and-set. Raises ConflictError."""
        return Lease.parse(await self.client.replace(LEASES, lease.body()))


def coordinator_lease(
    connection: ApiConnection,
    *,
    namespace: str,
    name: str,
    call_deadline: float,
    user_agent: str = "compactor-elector",
    observe: Callable[[ApiCall], None] | None = None,
) -> Callable[[], AbstractAsyncContextManager[ElectionPort]]:
    """A factory for the elector: it opens a client of its own, inside the elector's loop."""

    @asynccontextmanager
    async def open_port() -> AsyncIterator[ElectionPort]:
        async with ApiClient(connection, user_agent=user_agent, deadline=call_deadline, observe=observe) as client:
            yield CoordinatorLease(client, namespace, name)

    return open_port
