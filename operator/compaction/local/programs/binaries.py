"""Programs of the control plane: found, cached, downloaded as the published archive, or built; in this order."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from types import FrameType

from compaction.local.errors import BinaryError
from compaction.local.processes.process import cache_directory, exclusive
from compaction.local.programs import gobuild
from compaction.local.programs.gobuild import (
    ENVTEST_SHA512,
    ENVTEST_URL,
    ENVTEST_VERSION,
    ETCD_VERSION,
    KUBERNETES_VERSION,
)

# Download the published envtest archive: etcd, kube-apiserver and kubectl in one file, trusted by its pinned checksum
# only.
#
# Standard library only: this runs while the virtual environment is still being filled. Where the archive cannot be
# reached it says so within seconds, because the next way (a build) takes minutes and should start at once.

PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
CONNECT_TIMEOUT_SECONDS = 5.0
CHUNK = 1 << 20


def download(place: Path, system: str, machine: str, report: Callable[[str], None]) -> None:
    """Fetch, check and unpack the archive for `system`/`machine` (Go's words) into the directory `place`.

    Raises:
        BinaryError: no archive is pinned for this platform, it cannot be reached, or its content is not the pinned one.
    """
    checksum = ENVTEST_SHA512.get(f"{system}-{machine}")
    if checksum is None:
        raise BinaryError(f"none is pinned for {system}-{machine}")
    url = ENVTEST_URL.format(version=ENVTEST_VERSION, system=system, machine=machine)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / PurePosixPath(url).name
        try:
            with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_SECONDS) as answer, file.open("wb") as output:
                report(f"downloading {file.name}")
                shutil.copyfileobj(answer, output, CHUNK)
        except OSError as error:
            raise BinaryError(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from error
        unpack(file, place, checksum=checksum)


def unpack(file: Path, place: Path, *, checksum: str) -> None:
    """Check the whole file's SHA-512, then take exactly the three programs out of it, whatever folder they are in.

    Raises:
        BinaryError: another checksum, not a gzipped tar file, or a program is not inside.
    """
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha512").hexdigest()
    if found != checksum:
        raise BinaryError(f"{file.name} has SHA-512 {found}, expected {checksum}: not used")
    try:
        with tarfile.open(file, mode="r:gz") as archive:
            for member in archive:
                program = PurePosixPath(member.name).name
                source = archive.extractfile(member) if member.isfile() and program in PROGRAMS else None
                if source is not None:
                    target = place / program
                    with target.open("wb") as output:
                        shutil.copyfileobj(source, output, CHUNK)
                    target.chmod(0o755)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BinaryError(f"{file.name} is not a gzipped tar file: {error}") from error
    missing = [program for program in PROGRAMS if not (place / program).exists()]
    if missing:
        raise BinaryError(f"{file.name} does not hold {', '.join(missing)}")


# Origins of etcd, kube-apiserver and kubectl: found, cached, downloaded, or built; in this order.
#
# 1. `KUBEBUILDER_ASSETS` (a directory with the programs, as envtest uses it), then PATH.
# 2. Our cache, `${COMPACTION_CACHE:-~/.cache/compaction-operator}`.
# 3. The published envtest archive, checked against the checksum pinned here (`archive.py`).
# 4. A build from the public Go modules, checked against the sums pinned here (`gobuild.py`); about 12 CPU-minutes,
#   once.
#
# A set of programs appears in the cache complete or not at all (it is made in a temporary directory beside its place
# and renamed), and one process at a time makes it. The three programs are looked for together: a control plane is
# never mixed from two origins, except for kubectl, which talks to any server and is taken from PATH when it is there.

SERVERS = ("etcd", "kube-apiserver")
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
MAKING = ".making-"
"""Prefix of directories in which a set is made; without it once it is complete."""

Report = Callable[[str], None]


class Origin(StrEnum):
    """The way in which the programs were obtained."""

    ASSETS = "KUBEBUILDER_ASSETS"
    PATH = "PATH"
    CACHE = "cache"
    ARCHIVE = "archive"
    BUILT = "built"


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of a control plane, as absolute paths, and where they came from."""

    etcd: Path
    kube_apiserver: Path
    kubectl: Path
    origin: Origin


@dataclass(frozen=True, slots=True)
class BuildTarget:
    """An operating system and processor, in Go's words (`linux`, `amd64`)."""

    system: str
    machine: str

    @classmethod
    def here(cls) -> BuildTarget:
        machine = platform.machine().lower()
        return cls(platform.system().lower(), {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine))

    def __str__(self) -> str:
        return f"{self.system}-{self.machine}"


@dataclass(frozen=True, slots=True)
class Makers:
    """The two ways to make what is missing. Each writes programs into a directory and raises `BinaryError` when it
    cannot.
    """

    download: Callable[[Path, str, str, Report], None] = download
    build: Callable[[Path, tuple[str, ...], Path, Report], None] = gobuild.build


def cache_lock(cache: Path) -> Path:
    """The lock of the process that builds programs in the cache; one at a time, also of different sets."""
    return cache / "control-plane.lock"


def find_binaries(environment: Mapping[str, str] | None = None) -> Binaries | None:
    """The programs that are already here (steps 1 and 2), or None. Never makes anything; milliseconds."""
    environment = os.environ if environment is None else environment
    search = environment.get("PATH", "")
    cache = cache_directory(environment)
    sets = _cached_sets(cache)
    cached = os.pathsep.join(str(path) for path in (_kubectl_set(cache), *sets))
    places: list[tuple[Origin, str]] = []
    if environment.get(ASSETS_VARIABLE):
        places.append((Origin.ASSETS, environment[ASSETS_VARIABLE]))
    places.append((Origin.PATH, search))
    places += [(Origin.CACHE, str(directory)) for directory in sets]
    for origin, where in places:
        etcd, apiserver = (shutil.which(name, path=where) for name in SERVERS)
        found = (shutil.which("kubectl", path=path) for path in (where, search, cached))
        kubectl = next(filter(None, found), None)
        if etcd and apiserver and kubectl:
            return Binaries(Path(etcd).absolute(), Path(apiserver).absolute(), Path(kubectl).absolute(), origin)
    return None


def ensure_binaries(
    *, report: Report = lambda _: None, environment: Mapping[str, str] | None = None, makers: Makers | None = None
) -> Binaries:
    """The programs, made when they are not here yet. Safe to call from two processes at once: the second one waits and
    finds them.

    Raises:
        BinaryError: `KUBEBUILDER_ASSETS` lacks a program, or neither the archive nor the build worked; says why for
            each.
    """
    environment = os.environ if environment is None else environment
    _check_assets(environment)
    found = find_binaries(environment)
    if found is not None:
        return found
    cache = cache_directory(environment)
    with exclusive(cache_lock(cache), what="preparing the control plane", report=report):
        found = find_binaries(environment)
        if found is not None:
            return found
        origin = _make(cache, environment=environment, makers=makers or Makers(), report=report)
    made = find_binaries(environment)
    if made is None:
        raise BinaryError(f"the programs made in {cache} are not executable; remove that directory and try again")
    return Binaries(made.etcd, made.kube_apiserver, made.kubectl, origin)


def _make(cache: Path, *, environment: Mapping[str, str], makers: Makers, report: Report) -> Origin:
    target = BuildTarget.here()
    wanted = missing_programs(environment)
    remove_unfinished(cache)
    archive_set, built_set = _cached_sets(cache)
    try:
        install_set(archive_set, lambda place: makers.download(place, target.system, target.machine, report))
    except BinaryError as refusal:
        report(f"no archive ({refusal}); building from the Go modules")
    else:
        return Origin.ARCHIVE
    if built_set.exists() and wanted == ("kubectl",):
        install_set(_kubectl_set(cache), lambda place: makers.build(place, wanted, cache, report))
    else:
        install_set(built_set, lambda place: makers.build(place, wanted, cache, report))
    return Origin.BUILT


def missing_programs(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the programs that a build must make: kubectl only when no other is at hand, the servers unless the cache
    has them.
    """
    servers = () if any(directory.exists() for directory in _cached_sets(cache_directory(environment))) else SERVERS
    return servers if shutil.which("kubectl", path=environment.get("PATH", "")) else (*servers, "kubectl")


def install_set(place: Path, make: Callable[[Path], None]) -> None:
    """Let `make` fill a temporary directory and give it its name in one step; an interrupted attempt leaves nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=MAKING) as temporary:
        fresh = Path(temporary) / place.name
        fresh.mkdir()
        make(fresh)
        if place.exists():
            shutil.rmtree(place)
        fresh.rename(place)


def remove_unfinished(cache: Path) -> None:
    """Remove what a killed attempt left; the lock is ours, so no process works in it."""
    for leftover in (*cache.glob(f"{gobuild.TEMPORARY}*"), *(cache / "control-plane").glob(f"{MAKING}*")):
        shutil.rmtree(leftover)


def _cached_sets(cache: Path) -> tuple[Path, Path]:
    """The directories of the downloaded and of the built set; their names carry every version inside."""
    target, base = BuildTarget.here(), cache / "control-plane"
    return (
        base / f"envtest-{ENVTEST_VERSION}-{target}",
        base / f"kubernetes-{KUBERNETES_VERSION}-etcd-{ETCD_VERSION}-{target}",
    )


def _kubectl_set(cache: Path) -> Path:
    return cache / "control-plane" / f"kubectl-{KUBERNETES_VERSION}-{BuildTarget.here()}"


def _check_assets(environment: Mapping[str, str]) -> None:
    """A directory the user named must be right: falling through to another origin would hide the mistake."""
    named = environment.get(ASSETS_VARIABLE)
    if not named:
        return
    missing = [name for name in SERVERS if shutil.which(name, path=named) is None]
    if missing:
        raise BinaryError(
            f"{ASSETS_VARIABLE}={named} has no executable {' and no '.join(missing)}: correct or unset the variable"
        )


def main() -> int:
    """Prepare the programs; `make setup` runs this beside pip, hence the standard library only on this path."""
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"[control plane {int(time.monotonic() - started):4d} s] {line}", flush=True)

    # Started by a shell in the background, where SIGINT is ignored from birth: both must clean up as Ctrl-C does.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _interrupt)
    try:
        binaries = ensure_binaries(report=report)
    except BinaryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    report(f"ready: {binaries.kube_apiserver} ({binaries.origin})")
    return 0


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
