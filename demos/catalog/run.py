"""The demo of catalogs from beginning to end, and its screens."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Final

from rich.console import Console
from rich.table import Table

from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.catalog.reasons import Reason
from compaction.api.text.printing import format_bytes
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.manager.history import CatalogHistory, recovered
from compaction.catalogs.manager.manager import CatalogManager
from compaction.local.cluster.control_plane import LocalState, write_state
from compaction.local.errors import DemoError
from compaction.local.programs.binaries import ensure_binaries
from demos.catalog import nodes
from demos.catalog.history import Author, StoredVersions, opened, stored
from demos.catalog.nodes import NAME, NODES, PREFIX, Model, Node, checkpointing, start_node, wait_ready
from demos.catalog.proof import (
    CatalogProver,
    CatalogStory,
    PinScene,
    Shown,
    checks,
    needed_by,
    shows,
    since_of,
    status_of,
)
from demos.cluster import DemoCluster, Replicas
from demos.proving import beside, raise_errors
from demos.scenes import MISSING, find_leaks, table_of
from demos.stage import DemoStage, ends_of
from tools.servers.etcd import LocalEtcd, serve_etcd

# The screen of a catalog: a line for each change, and the receipt at the end.

LINE_SECONDS: Final = 5.0
"""So often at least a line, as the reader goes on."""


@dataclass
class Lines:
    """One line when the catalog's state has changed, and now and then one for the reader."""

    console: Console
    prover: CatalogProver
    began: float = field(default_factory=time.monotonic)
    _last: str = ""
    _said: float = 0.0

    def show(self, catalog: CatalogCompaction) -> None:
        """The state of this moment."""
        now, state = time.monotonic(), status_of(catalog)
        if state == self._last and now - self._said < LINE_SECONDS:
            return
        self._last, self._said = state, now
        self.say(f"{state}; {reader_line(self.prover)}")

    def say(self, line: str) -> None:
        """A line with the seconds since the beginning."""
        seconds = int(time.monotonic() - self.began)
        self.console.print(f"{seconds:4d} s  {line}", highlight=False, markup=False, soft_wrap=True)


def reader_line(prover: CatalogProver) -> str:
    """How it goes for the reader."""
    wrong = f", {prover.wrong} DIFFERENT" if prover.wrong else ""
    return f"reader: {prover.proven} times equal{wrong}, {prover.refused} refused"


def pins_table(story: CatalogStory) -> Table:
    """Each pin with its time, where history began, and what released it."""
    table = table_of(("PIN", "SUBJECT", "SINCE", "HISTORY BEGINS AT", "RELEASED BY"))
    for item in story.shown:
        ended = item.status.compaction
        subject = MISSING if ended is None else ended.subject or MISSING
        table.add_row(
            item.scene.title, subject, _time(item.since), str(item.status.earliest_version), item.scene.released
        )
    return table


def receipt_table(story: CatalogStory) -> Table:
    """What was there, what is left, and what was proven meanwhile."""
    prover, before, after = story.prover, story.before, story.after
    table = table_of(("RECEIPT", "BEFORE", "AFTER"))
    table.add_row("versions in etcd", str(before.versions), str(after.versions))
    table.add_row("bytes in etcd", format_bytes(before.bytes), format_bytes(after.bytes))
    table.add_row("first version", "1", str(story.status.earliest_version))
    table.add_row("times proven equal", "", str(prover.proven))
    table.add_row("times refused", "", str(prover.refused))
    table.add_row("different", "", str(prover.wrong))
    return table


def _time(moment: datetime | None) -> str:
    return MISSING if moment is None else f"{moment:%H:%M:%S}"


# The demo of catalogs from beginning to end.
#
# In the stage's directory: `servers/` etcd and the participants, `policy.yaml` the CatalogCompaction that is applied,
# `control-plane/`, `operator/`. The Secrets are nowhere but in the API server; etcd and participants have files of
# their own.

LOOK_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 300.0
"""After so long a pin is not named any more. Not a measure of speed: rounds are seconds apart on a busy machine."""
HELD_ROUNDS: Final = 2
"""Rounds through which a pin holds, before it is released."""
TOKEN_BYTES: Final = 24


def show(stage: DemoStage) -> bool:
    """Show it all; True when every claim held. For `Stage.perform`."""
    place = CatalogServers(stage)
    place.start_etcd()
    for name in NODES[:2]:
        place.start_node(name)
    with ExitStack() as stack, ThreadPoolExecutor(max_workers=1) as pool:
        stack.callback(place.close)
        for node in place.nodes:
            wait_ready(node, stage.servers)
        manager = stack.enter_context(opened(place.etcd.settings))
        author = Author(manager, Model(), list(place.nodes))
        stage.step(f"{nodes.VERSIONS} versions of a catalog are written, while the control plane starts")
        written = pool.submit(author.write_all, stage.step)
        cluster = stage.start_cluster(policy=NAME, resources="ccat,lease")
        written.result()
        follower = stack.enter_context(opened(place.etcd.settings))
        released = stack.enter_context(checkpointing(place.nodes[1]))
        return _Play(stage, place, cluster, author, follower, released).perform()


@dataclass
class CatalogServers:
    """What the catalog's users run: etcd, and participants. All are recorded, so that the stage stops them."""

    stage: DemoStage
    nodes: list[Node] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(TOKEN_BYTES), repr=False)
    _etcd: LocalEtcd | None = None

    @property
    def etcd(self) -> LocalEtcd:
        assert self._etcd is not None, "start_etcd() comes first"
        return self._etcd

    def start_etcd(self) -> None:
        """Raises BinaryError, ControlPlaneError."""
        program = ensure_binaries(report=self.stage.step).etcd
        directory = self.stage.servers
        directory.mkdir(parents=True, mode=0o700)
        self._etcd = serve_etcd(directory / "etcd", program, sync=False, detached=self.stage.keep)
        self._record()
        self.stage.step(f"etcd of the catalog ready at {self.etcd.url}")

    def start_node(self, name: str) -> Node:
        """Node-2 takes no checkpoint by itself. Raises DemoError."""
        takes = name != NODES[1]
        node = start_node(self.stage.servers, name, self.token, checkpoints=takes, detached=self.stage.keep)
        self.nodes.append(node)
        self._record()
        return node

    def close(self) -> None:
        """Free connections; the stage stops the processes."""
        for node in self.nodes:
            node.close()

    def tls(self) -> dict[str, str]:
        """What a Secret must hold to reach etcd."""
        files = self.etcd.tls
        names: dict[str, Path | None] = {"ca.crt": files.ca, "tls.crt": files.certificate, "tls.key": files.key}
        return {key: path.read_text() for key, path in names.items() if path is not None}

    def _record(self) -> None:
        processes = (self.etcd.process, *(node.process for node in self.nodes))
        write_state(self.stage.servers, LocalState(url="", kubeconfig=Path(), processes=processes))


@dataclass
class _Play:
    """What happens once everything stands. `released`: from then on node-2 takes checkpoints."""

    stage: DemoStage
    servers: CatalogServers
    cluster: DemoCluster
    author: Author
    follower: CatalogManager
    released: Event
    prover: CatalogProver = field(init=False)
    lines: Lines = field(init=False)
    replicas: Replicas = field(init=False)

    def __post_init__(self) -> None:
        self.prover = CatalogProver(self.author.model, lambda: self.follower.history, self._fresh)
        self.lines = Lines(self.stage.console, self.prover)

    def perform(self) -> bool:
        stage, etcd = self.stage, self.servers.etcd
        before = stored(etcd.settings)
        stage.step(f"{before.versions} versions in etcd, {before.bytes} bytes; {NODES[2]} does not run")
        stage.apply_secrets(self.cluster, nodes.secrets(self.servers.tls(), self.servers.token))
        self.replicas = stage.start_operator(self.cluster)
        stage.apply_policy(self.cluster, self._manifest())
        shown = []
        with beside(self.prover):
            for scene in self._scenes():
                shown.append(self._hold(scene))
                self.lines.say(f"released: {scene.released}")
                scene.release()
            first = self.author.model.all()[-1].version - 1
            last = self._until(
                lambda item: (
                    item.status.earliest_version == first
                    and item.status.compaction is not None
                    and item.status.compaction.reason == Reason.NOTHING_TO_COMPACT
                ),
                f"history begins at version {first}",
            )
            # The reader has seen the last cut too, both as a process that follows and as one that starts.
            readings = self.prover.readings
            self._until(lambda _: self.prover.readings >= readings + 2 * len(NODES), "the reader reads on")
        return self._judge(shown, last, first, before)

    def _scenes(self) -> list[PinScene]:
        """In the order in which the pins are released: each was the oldest one until then."""
        author, model = self.author, self.author.model
        nodes = self.servers.nodes
        replay = model.first_kept(author.checkpointed_at)
        first = model.first_kept(author.first_transaction)
        second = model.first_kept(author.second_transaction)
        started = f"{NODES[2]} is started, and named in the spec"
        return [
            PinScene(Reason.MISSING_PARTICIPANT, NODES[2], 1, started, self._start_third),
            PinScene(Reason.REPLAY, NODES[1], replay, f"{NODES[1]} takes checkpoints again", self.released.set),
            self._transaction(nodes[0], author.first_transaction, first),
            self._transaction(nodes[1], author.second_transaction, second),
            # An index under construction stops the whole cut: history stays where it was.
            PinScene(
                Reason.INDEX_CONSTRUCTION, NODES[0], second, "the index is built, and available", self._finish_index
            ),
        ]

    def _transaction(self, node: Node, begun: int, first: int) -> PinScene:
        ended = f"the transaction of {node.name} ends"
        return PinScene(Reason.TRANSACTION, node.name, first, ended, lambda: node.act("finish", timestamp=str(begun)))

    def _start_third(self) -> None:
        node = self.servers.start_node(NODES[2])
        wait_ready(node, self.stage.servers)
        self.author.tell(node)
        self.author.nodes = list(self.servers.nodes)
        self.stage.apply_policy(self.cluster, self._manifest())

    def _finish_index(self) -> None:
        self.servers.nodes[0].act("end-index-build", indexId=self.author.index)
        self.author.finish_index()

    def _manifest(self) -> dict[str, object]:
        return nodes.compaction(self.servers.etcd.url, {node.name: node.url for node in self.servers.nodes})

    def _hold(self, scene: PinScene) -> Shown:
        """Wait until the pin is named, show it, and see it hold."""
        seen = self._until(lambda item: shows(item.status, scene), f"{scene.title} holds version {scene.first}")
        self.stage.command(self.cluster, "get", "ccat", NAME)
        self.stage.print_answer(f"kubectl compaction why ccat/{NAME}", self.cluster.plugin("why", f"ccat/{NAME}"))
        ends = {_finished(seen)}

        def held(compaction: CatalogCompaction) -> bool:
            ends.add(_finished(compaction))
            return len(ends) > HELD_ROUNDS or not shows(compaction.status, scene)

        seen = self._until(held, f"{scene.title} holds through {HELD_ROUNDS} rounds")
        needed = needed_by(self.servers.nodes, self.author.model)
        return Shown(scene, seen.status, since_of(seen.status), needed, len(ends) - 1)

    def _until(self, done: Callable[[CatalogCompaction], bool], what: str) -> CatalogCompaction:
        """Look and show. Raises DemoError: the operator ended, or it does not come to that."""
        began = time.monotonic()
        while True:
            raise_errors(self.prover)
            seen = self._look()
            self.lines.show(seen)
            if done(seen):
                return seen
            if not self.replicas.alive:
                raise DemoError(f"both replicas of the operator ended:\n{ends_of(self.replicas)}")
            if time.monotonic() - began > LONGEST_SECONDS:
                raise DemoError(f"waited {LONGEST_SECONDS:.0f} s in vain until {what}:\n{ends_of(self.replicas)}")
            time.sleep(LOOK_SECONDS)

    def _look(self) -> CatalogCompaction:
        return CatalogCompaction.from_object(json.loads(self.cluster.run("get", "ccat", NAME, "-o", "json")))

    def _fresh(self) -> CatalogHistory:
        """Of a process that starts now."""
        log = EtcdUpdateLog(GatewayClient(self.servers.etcd.settings), PREFIX)
        try:
            return recovered(log.recover().events)
        finally:
            log.close()

    def _judge(self, shown: list[Shown], last: CatalogCompaction, first: int, before: StoredVersions) -> bool:
        stage = self.stage
        stage.command(self.cluster, "get", "ccat,lease")
        stage.command(self.cluster, "get", "events", "--field-selector", f"involvedObject.name={NAME}")
        processes = (*self.replicas.alive, *(node.process for node in self.servers.nodes))
        story = CatalogStory(
            shown=shown,
            status=last.status,
            first=first,
            prover=self.prover,
            before=before,
            after=stored(self.servers.etcd.settings),
            leaks=find_leaks([self.servers.token], self.cluster, stage.operator, processes),
            replicas_alive=len(self.replicas.alive),
        )
        return stage.conclude(self.cluster, checks(story), pins_table(story), receipt_table(story))


def _finished(catalog: CatalogCompaction) -> str:
    ended = catalog.status.compaction
    return "" if ended is None else ended.finished_at.isoformat()
