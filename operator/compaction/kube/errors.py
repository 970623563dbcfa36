"""Errors of the API server, and of launching workers on it."""

from __future__ import annotations

from compaction.errors import CompactionError


class ConnectionConfigError(CompactionError):
    """No usable way to reach the API server was found; names the files and variables that were tried."""


class KindsNotServedError(ConnectionConfigError):
    """The API server does not serve our kinds: their definitions are not applied, or it has not read them yet."""


class OlderDefinitionsError(KindsNotServedError):
    """The definitions that the API server serves lack fields that this operator writes, or have not been read yet."""


class ClusterCommandError(CompactionError):
    """A command for a cluster cannot be carried out: no such object, no permission, no answer, not in this state."""


class PlanNotApprovedError(CompactionError):
    """A plan must be approved by its hash before it is carried out (`approval: Manual`), and was not."""


class MissingPermissionsError(CompactionError):
    """The operator's account lacks permissions it needs; lists every missing verb and resource."""


class LaunchError(CompactionError):
    """A worker could not be started; names the worker and the cause."""


class KindNotServedError(LaunchError):
    """The API server listed the kind of a worker's object and has no handler for it: it comes, or has just gone."""


class LaunchUncertainError(LaunchError):
    """The answer to a launch got lost: the worker may have been started."""
