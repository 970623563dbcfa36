"""The way from a process to the API server and back, with everything that goes wrong on it.

`SimulatedTransport` replaces the one method that sends a request and the one that streams an answer; retries,
deadlines, typed errors and everything above are the production code's.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time as real_time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from compaction.errors import ApiUnavailableError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection, no_token
from compaction.kube.client.transport import _UNSENT, Request, Transport, error_of
from compaction.segments.model import FileIdentity
from compaction.segments.scan import find, sense
from simulation.api_server import ApiServer, Change, Obj, Refused, seen_as
from simulation.processes import EPOCH, PROCESS, Process, give_way
from simulation.schedule import Faults

ODDS = {
    "refused": 0.008,
    "429": 0.008,
    "500": 0.006,
    "503": 0.006,
    "reset-before": 0.006,
    "reset-after": 0.012,
    "hang-before": 0.003,
    "hang-after": 0.006,
    "slow": 0.01,
}
WATCH_ODDS = {"drop": 0.02, "duplicate": 0.02, "reorder": 0.03, "break": 0.01, "expire": 0.01, "delay": 0.04}
FOREVER = 100_000.0


@dataclass
class Network:
    """What lies between processes and the server. `cut` processes reach nobody; `down`: nobody reaches the server."""

    server: ApiServer
    faults: Faults
    trouble: float = 1.0
    down: bool = False
    cut: set[str] = field(default_factory=set)
    log: Any = lambda *words: None  # (process, text)
    written: Any = lambda *words: None  # (process, request, answer) after each request that was carried out

    def odds(self) -> dict[str, float]:
        return {kind: probability * self.trouble for kind, probability in ODDS.items()}


def client_of(process: Process, network: Network, *, deadline: float = 15.0) -> ApiClient:
    """The production client of a process, on the simulated way to the server."""
    dice = network.faults.dice(f"{process.name}/client/{process.number('clients')}")
    connection = ApiConnection(server="https://simulated", ssl_context=None, token=no_token())
    client = ApiClient(connection, user_agent="simulation", deadline=deadline, rng=dice)
    client._transport = SimulatedTransport(connection, process, network, deadline=deadline, rng=dice)
    return client


class SimulatedTransport(Transport):
    """`Transport` without sockets."""

    def __init__(
        self, connection: ApiConnection, process: Process, network: Network, *, deadline: float, rng: random.Random
    ) -> None:
        super().__init__(connection, user_agent="simulation", deadline=deadline, rng=rng)
        self._process = process
        self._network = network

    async def _once(self, request: Request) -> Obj:
        network, process = self._network, self._process
        moment = f"{process.name}/api/{process.number('api')}"
        dice = network.faults.dice(f"{moment}/latency")
        fault = network.faults.choose(moment, network.odds())
        what = f"{request.method} {request.path}"
        await asyncio.sleep(dice.uniform(0.0005, 0.004))
        if network.down or process.name in network.cut or fault == "refused":
            network.log(process, f"{what} -> unreachable")
            raise ApiUnavailableError(f"{what}: cannot connect", reason=_UNSENT)
        match fault:
            case "429" | "500" | "503":
                headers = {"Retry-After": "1"} if fault == "429" else {}
                network.log(process, f"{what} -> {fault}")
                raise error_of(int(fault), f"injected {fault}", what, headers)
            case "reset-before":
                raise ApiUnavailableError(f"{what}: connection reset before it arrived")
            case "hang-before":
                await asyncio.sleep(FOREVER)
            case "slow":
                await asyncio.sleep(dice.uniform(0.5, 6.0))
        try:
            answer = network.server.handle(request)
        except Refused as refused:
            network.log(process, f"{what} -> {refused.code} {refused.reason}")
            await asyncio.sleep(dice.uniform(0.0005, 0.004))
            raise error_of(refused.code, refused.body, what, {}) from None
        network.log(process, f"{what} -> ok{f' but {fault}' if fault else ''}")
        network.written(process, request, answer)
        if fault == "reset-after":
            raise ApiUnavailableError(f"{what}: connection reset after it was carried out")
        if fault == "hang-after":
            await asyncio.sleep(FOREVER)
        await asyncio.sleep(dice.uniform(0.0005, 0.004))
        return answer

    async def stream(self, request: Request, *, seconds: float, silence: float) -> AsyncIterator[bytes]:
        network, process = self._network, self._process
        query = dict(request.query or {})
        what = f"{request.verb} {request.path}"
        plural = request.path.rsplit("/", 1)[-1]
        name = f"{process.name}/watch/{process.number('watch')}"
        await asyncio.sleep(0.002)
        if network.down or process.name in network.cut:
            raise ApiUnavailableError(f"{what}: cannot connect", reason=_UNSENT)
        version = int(query["resourceVersion"])
        if version < network.server.horizon:
            raise error_of(410, json.dumps({"code": 410, "reason": "Expired"}), what, {})
        watch = _Watch(network, plural, query.get("labelSelector"), version)
        ending = asyncio.get_running_loop().time() + float(query["timeoutSeconds"])
        try:
            for number in range(1_000_000):
                left = ending - asyncio.get_running_loop().time()
                try:
                    async with asyncio.timeout(max(left, 0.0)):
                        change = await watch.next()
                except TimeoutError:
                    return
                async for line in self._deliver(watch, change, f"{name}/{number}", what):
                    yield line
        finally:
            watch.close()

    async def _deliver(self, watch: _Watch, change: Change, moment: str, what: str) -> AsyncIterator[bytes]:
        network, process = self._network, self._process
        fault = network.faults.choose(moment, {k: p * network.trouble for k, p in WATCH_ODDS.items()})
        if network.down or process.name in network.cut or fault == "break":
            raise ApiUnavailableError(f"{what} broke")
        if fault == "expire":
            status = {"code": 410, "reason": "Expired", "message": "too old resource version"}
            yield json.dumps({"type": "ERROR", "object": status}).encode()
            return
        dice = network.faults.dice(f"{moment}/latency")
        await asyncio.sleep(dice.uniform(1.0, 8.0) if fault == "delay" else dice.uniform(0.001, 0.01))
        if fault == "drop":
            return
        changes = [change, change] if fault == "duplicate" else [change]
        if fault == "reorder" and (following := watch.pop()) is not None:
            changes = [following, change]
        for item in changes:
            seen = seen_as(item, watch.selector)
            if seen is not None:
                yield json.dumps({"type": seen[0], "object": seen[1]}).encode()


class _Watch:
    """The changes of one kind after a version, in order."""

    def __init__(self, network: Network, plural: str, selector: str | None, version: int) -> None:
        self.selector = selector
        self._server = network.server
        self._plural = plural
        self._waiting = [c for c in network.server.history if c.version > version and c.plural == plural]
        self._more = asyncio.Event()
        network.server.listeners.append(self._heard)

    def _heard(self, change: Change) -> None:
        if change.plural == self._plural:
            self._waiting.append(change)
            self._more.set()

    def pop(self) -> Change | None:
        return self._waiting.pop(0) if self._waiting else None

    async def next(self) -> Change:
        while not self._waiting:
            self._more.clear()
            await self._more.wait()
        return self._waiting.pop(0)

    def close(self) -> None:
        if self._heard in self._server.listeners:
            self._server.listeners.remove(self._heard)


# The modules `time` and FileIdentity as simulated code sees them: the clock of whichever process is asking.
#
# What reads a clock or sleeps gets the process's virtual time. Inode numbers and modification times, which no two
# runs share, are renamed in the order in which they were first seen: job names are made of them, so a seed would not
# replay.


class SimulatedTime:
    """Stands where a module of ours imported `time`."""

    CLOCK_BOOTTIME = getattr(real_time, "CLOCK_BOOTTIME", 7)
    gmtime = staticmethod(real_time.gmtime)
    strftime = staticmethod(real_time.strftime)

    @staticmethod
    def monotonic() -> float:
        process = PROCESS.get()
        return process.monotonic() if process is not None else 0.0

    perf_counter = monotonic

    @staticmethod
    def clock_gettime(clock: int) -> float:
        return SimulatedTime.monotonic()

    @staticmethod
    def time() -> float:
        process = PROCESS.get()
        return process.wall() if process is not None else EPOCH

    @staticmethod
    def sleep(seconds: float) -> None:
        give_way(seconds)


class _Stamps(type):
    def __getattr__(cls, name: str) -> Any:
        return getattr(os, name)


class SimulatedStamps(metaclass=_Stamps):
    """`os` for those who compare a file's ctime, the one stamp that nobody can set: it is what mtime is."""

    @staticmethod
    def stat(path: Any, **options: Any) -> Any:
        found = os.stat(path, **options)
        names = ("st_dev", "st_ino", "st_mode", "st_size", "st_mtime", "st_mtime_ns", "st_nlink", "st_uid", "st_gid")
        return SimpleNamespace(st_ctime_ns=found.st_mtime_ns, **{name: getattr(found, name) for name in names})

    @staticmethod
    def lstat(path: Any) -> Any:
        return SimulatedStamps.stat(path, follow_symlinks=False)


@contextmanager
def simulated_time() -> Iterator[Numbers]:
    """Every module of ours that is loaded reads simulated clocks within the block."""
    replaced = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("compaction.") and getattr(module, "time", None) is real_time
    ]
    shim: Any = SimulatedTime
    for module in replaced:
        module.time = shim  # type: ignore[attr-defined]
    stamped: Any = SimulatedStamps
    for module in (find, sense):
        module.os = stamped  # type: ignore[attr-defined]
    original = FileIdentity.__dict__["of"]
    numbers = Numbers()
    FileIdentity.of = classmethod(numbers.of)  # type: ignore[assignment]
    try:
        yield numbers
    finally:
        FileIdentity.of = original  # type: ignore[method-assign]
        for module in (find, sense):
            module.os = os  # type: ignore[attr-defined]
        for module in replaced:
            module.time = real_time  # type: ignore[attr-defined]


class Numbers:
    """Inodes and modification times by number, in the order in which they were first seen since `begin`."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def begin(self) -> None:
        """Nothing was seen yet."""
        self._numbers.clear()

    def of(self, kind: type[FileIdentity], stat: os.stat_result) -> FileIdentity:
        number = self._numbers.setdefault((stat.st_ino, stat.st_mtime_ns), len(self._numbers) + 1)
        return kind(device=1, inode=number, size=stat.st_size, mtime_ns=number)
