"""A catalog with users: its log in a real etcd, participants as processes, and the CatalogCompaction about it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.commands.table_commands import AddColumns, CreateTable, PrimaryKey
from compaction.catalogs.commands.zone_commands import CreateZone
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager, Executed
from compaction.catalogs.model.catalog import Catalog
from support.catalogs.participants import ParticipantProcess
from support.catalogs.rounds import column
from support.clocks import eventually
from support.cluster.by_kubectl import Cluster, Object, condition, write_secret
from support.endpoints import SECRET

NAME: Final = "orders"
ROOT: Final = "/catalogs"
"""What the prefixes of all logs begin with."""
ZONE, TABLE = "FAST", "ORDERS"
TOKEN_SECRET, LOG_SECRET = "orders-participants", "orders-etcd"
EXECUTION_SECONDS: Final = 120.0
QUICK: Final[Mapping[str, Any]] = {
    "interval": "500ms",
    "lowWatermark": {"updateInterval": "500ms", "dataAvailability": "1s"},
    # Clocks of one machine; what is allowed here is what a loaded one takes to answer.
    "maxClockSkew": "1s",
    # The participants declare that they read no old rows: snapshots are smaller than what they replace.
    "trim": True,
}
NEVER: Final[Mapping[str, Any]] = {
    "interval": "24h",
    "lowWatermark": {"updateInterval": "24h", "dataAvailability": "1s"},
}
"""Nothing but a term or a changed spec begins a round."""
COMPONENT: Final = Path(__file__).resolve().parents[3] / "manifests" / "components" / "catalogs" / "role.yaml"


@dataclass
class Orders:
    """The catalog and its users. `settings`: how the log is reached by the test; `versions`: activation times."""

    cluster: Cluster
    settings: EtcdSettings
    participants: dict[str, ParticipantProcess]
    prefix: str = field(default_factory=lambda: f"{ROOT}/{secrets.token_hex(4)}")
    versions: dict[int, int] = field(default_factory=dict)

    def __enter__(self) -> Orders:
        self._log = EtcdUpdateLog(GatewayClient(self.settings), self.prefix)
        self.manager = CatalogManager(self._log, settings=Settings(delay=1, max_skew=1))
        self.manager.start()
        self.manager.initialization.result(EXECUTION_SECONDS)
        self.versions[1] = self.manager.latest.activation_time
        return self

    def __exit__(self, *error: object) -> None:
        self.manager.close()
        self._log.close()
        for participant in self.participants.values():
            participant.close()

    # -- the catalog ---------------------------------------------------------------------------------------------------

    def run(self, *commands: CatalogCommand) -> Executed:
        """One more version, which all running participants know."""
        done = self.manager.execute(commands).result(EXECUTION_SECONDS)
        assert done is not None
        self.versions[done.version] = done.time
        for participant in self.participants.values():
            if participant.process is not None:
                participant.act("add-version", version=done.version, activation=done.time)
        return done

    def grow(self, count: int) -> int:
        """So many versions more, one column each; the last version."""
        for _ in range(count):
            self.run(AddColumns("PUBLIC", TABLE, (column(f"C{len(self.versions)}"),)))
        return max(self.versions)

    @property
    def latest(self) -> Catalog:
        return self.manager.latest

    @property
    def table_id(self) -> int:
        (found,) = (table.id for table in self.latest.tables.values() if table.name == TABLE)
        return found

    @property
    def zone_id(self) -> int:
        (found,) = (zone.id for zone in self.latest.zones.values() if zone.name == ZONE)
        return found

    def history(self) -> list[int]:
        """Versions of the log, as a process that starts now would find them."""
        log = EtcdUpdateLog(GatewayClient(self.settings), self.prefix)
        try:
            return [event.event.version for event in log.recover().events]
        finally:
            log.close()

    # -- participants --------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """The participants, or these, as processes that hold their partition and know the catalog's versions; the first
        of all leads it.
        """
        for name in names or tuple(self.participants):
            one = self.participants[name]
            one.start()
            for version, activation in sorted(self.versions.items()):
                one.act("add-version", version=version, activation=activation)
            if TABLE in {table.name for table in self.latest.tables.values()}:
                self.hold_partition(name)

    def hold_partition(self, name: str) -> None:
        role = "Primary" if name == next(iter(self.participants)) else "Replica"
        self.participants[name].act("add-partition", tableId=self.table_id, partition=0, role=role)

    def create(self, *, versions: int = 8) -> None:
        """A zone with one partition and a table in it, then columns: `versions` in all."""
        self.run(CreateZone(ZONE, ("default",), partitions=1, replicas=len(self.participants)))
        key = PrimaryKey(("ID",))
        self.run(CreateTable("PUBLIC", TABLE, (column("ID", nullable=False), column("V")), key, zone=ZONE))
        self.grow(versions - len(self.versions))
        self.start()

    def await_ready(self, *, past: int = 0) -> None:
        """Every participant has a watermark, and a published minimum of its partition, later than `past`: as if rounds
        had gone on for a while. None has a transaction.
        """
        for name in self.participants:
            eventually(partial(self._ready, name, past), f"participant {name} to need nothing old")

    def _ready(self, name: str, past: int) -> bool:
        report = self.participants[name].report()
        watermark = int(report["lowWatermark"])
        if watermark:
            for participant in self.participants.values():
                participant.store_minimum(watermark)
        return report["cause"] != "NotReady" and int(report["minimum"]) > past

    # -- the object ----------------------------------------------------------------------------------------------------

    def allow_secrets(self, user: str) -> None:
        """The component for catalogs, for an operator that is this user."""
        documents = list(yaml.safe_load_all(COMPONENT.read_text()))
        documents[1]["subjects"] = [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]
        self.cluster.apply(*documents)

    def write_token(self, token: str = SECRET) -> None:
        write_secret(self.cluster, TOKEN_SECRET, {"token": token})

    def apply(self, *, endpoints: Sequence[str] = (), secret: str | None = None, **spec: Any) -> None:
        """Make or change the object; `spec` replaces members."""
        urls = [{"name": name, "url": item.url} for name, item in self.participants.items()]
        catalog: Object = {"endpoints": list(endpoints) or [str(endpoint) for endpoint in self.settings.endpoints]}
        catalog["prefix"] = f"{self.prefix}/"
        members: Object = {
            "catalog": catalog | ({} if secret is None else {"secretName": secret}),
            "participants": {"urls": urls, "token": {"secretName": TOKEN_SECRET}},
            "topology": {"participants": list(self.participants), "minParticipants": len(self.participants)},
        }
        document = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CatalogCompaction", "metadata": {"name": NAME}}
        self.cluster.apply(document | {"spec": members | dict(QUICK) | spec})

    def patch(self, **spec: Any) -> None:
        """Change members of the spec as a user does."""
        self.cluster.patch(f"ccat/{NAME}", {"spec": spec})

    def status(self) -> Object:
        found: Object = self.cluster.catalog(NAME).get("status", {})
        return found

    def until(self, what: str, holds: Callable[[Object], bool]) -> Object:
        """The status once it is so."""

        def found() -> Object | None:
            status = self.status()
            return status if status.get("observedGeneration", -1) != -1 and holds(status) else None

        try:
            return eventually(found, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {json.dumps(self.status(), indent=1)}") from None

    def await_cut(self, earliest: int) -> Object:
        """Until history begins with this version, and the log says so too."""
        status = self.until(
            f"history to begin with version {earliest}", lambda item: item.get("earliestVersion") == earliest
        )
        assert self.history()[0] == earliest
        return status

    def await_latest(self, version: int) -> Object:
        """Until a round has read this version."""
        return self.until(f"version {version} to be read", lambda item: item.get("latestVersion") == version)

    def await_pin(self, reason: str, participant: str, *, earliest: int) -> Object:
        """Until this is what needs the catalog, and why history is not cut further than to `earliest`."""

        def pinned(status: Object) -> bool:
            pin, process = status.get("requiredTime") or {}, status.get("compaction") or {}
            named = (pin.get("reason"), pin.get("participant")) == (reason, participant)
            return named and process.get("reason") == reason and status.get("earliestVersion") == earliest

        return self.until(f"{reason} of {participant} to be named, and history from {earliest} on", pinned)

    def await_reason(self, reason: str, participant: str = "", *, says: str = "") -> Object:
        """Until the last compaction ended for this reason; the process."""

        def ended(status: Object) -> bool:
            process = status.get("compaction") or {}
            found = (process.get("reason"), process.get("participant", "")) == (reason, participant)
            return found and says in process.get("message", "")

        process: Object = self.until(f"{reason} of {participant!r}", ended)["compaction"]
        return process

    def ready(self) -> tuple[str, str]:
        """Status and reason of the condition Ready."""
        found = condition(self.cluster.catalog(NAME), "Ready")
        return found.get("status", ""), found.get("reason", "")

    def await_condition(self, status: str, reason: str) -> None:
        """Until Ready has this status for this reason."""
        eventually(lambda: self.ready() == (status, reason), f"Ready={status} {reason}; {self.status()}")


@contextmanager
def orders(cluster: Cluster, settings: EtcdSettings, directory: Path, *names: str, **options: Any) -> Iterator[Orders]:
    """A catalog with participants of these names, which do not run yet; at the end none does."""
    directory.mkdir()
    made = {name: ParticipantProcess(name, directory, **options) for name in names}
    with Orders(cluster, settings, made) as found:
        yield found


# A CatalogCompaction, and specs that are refused, with the advice that each gets.

TOKEN = {"secretName": "participants"}
CATALOG: dict[str, Any] = {"endpoints": ["https://etcd-0:2379"], "secretName": "etcd"}
PARTICIPANTS: dict[str, Any] = {
    "selector": {"matchLabels": {"app": "orders"}, "port": 7800},
    "token": TOKEN,
}


def catalog_object(name: str = "orders", **spec: Any) -> dict[str, Any]:
    """As a user writes it; `spec` replaces members, None leaves one out."""
    members = {"catalog": CATALOG, "participants": PARTICIPANTS} | spec
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CatalogCompaction",
        "metadata": {"name": name},
        "spec": {key: value for key, value in members.items() if value is not None},
    }


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("no-participants", {"participants": None}, "name the participants by selector or urls"),
    ("no-urls", {"participants": {"urls": []}}, "name the participants by selector or urls"),
    ("no-endpoints", {"catalog": {"endpoints": []}}, ""),
    ("no-scheme", {"catalog": {"endpoints": ["etcd-0:2379"]}}, "must be http://host:port or https://host:port"),
    (
        "a-password",
        {"catalog": {"endpoints": ["https://user:secret@etcd-0:2379"]}},
        "credentials belong in a Secret",
    ),
    ("prefix", {"catalog": {**CATALOG, "prefix": "orders/"}}, "must begin with /"),
    ("secret", {"catalog": {**CATALOG, "secretName": "../etcd"}}, "must be the name of a Secret"),
    (
        "no-labels",
        {"participants": {"selector": {"matchLabels": {}, "port": 1}, "token": TOKEN}},
        "name at least one label",
    ),
    (
        "no-token",
        {"participants": {"selector": {"matchLabels": {"a": "b"}, "port": 1}}},
        "name the Secret with the token",
    ),
    (
        "two-tokens",
        {"participants": {**PARTICIPANTS, "serviceAccountToken": {}}},
        "set either token or serviceAccountToken",
    ),
    ("port", {"participants": {"selector": {"matchLabels": {"a": "b"}, "port": 0}}}, ""),
    ("interval", {"interval": "0s"}, "must be longer than 0s"),
    ("duration", {"maxClockSkew": "soon"}, "write a duration such as 30s"),
    (
        "range",
        {"topology": {"assignments": [{"zone": "Z", "firstPartition": 3, "lastPartition": 2, "participants": ["a"]}]}},
        "lastPartition must not be below firstPartition",
    ),
    ("partition", {"topology": {"assignments": [{"zone": "Z", "lastPartition": 65000, "participants": ["a"]}]}}, ""),
    (
        "none",
        {"topology": {"minParticipants": 0}},
        "minParticipants 0 is for a catalog without participants",
    ),
    (
        "assigned",
        {"participants": None, "topology": {"minParticipants": 0, "participants": ["a"]}},
        "minParticipants 0 is for a catalog without participants",
    ),
    ("nowhere", {"topology": {"assignments": [{"zone": "Z", "participants": []}]}}, ""),
)

ACCEPTED: tuple[dict[str, Any], ...] = (
    {},
    {"participants": None, "topology": {"minParticipants": 0}},
    {"participants": {"urls": [{"name": "node-1", "url": "http://node-1:7800/catalog"}], "token": TOKEN}},
    {"participants": {"selector": {"matchLabels": {"a": "b"}, "port": 7800}, "serviceAccountToken": {}}},
    {"catalog": {"endpoints": ["http://127.0.0.1:2379", "https://[::1]:2379"], "prefix": "/"}},
    {"topology": {"assignments": [{"zone": "Z", "participants": ["a", "b"]}, {"zone": "Z", "participants": ["c"]}]}},
    {"maxClockSkew": "0s", "lowWatermark": {"dataAvailability": "0s", "updateInterval": "500ms"}, "dryRun": True},
)
