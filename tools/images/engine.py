"""The program that builds images, docker or buildah, run with progress."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from compaction.local.errors import ImageError

# Long commands with progress: each line they print is parsed, and their last lines explain a failure.

Report = Callable[[str], None]

TAIL_LINES: Final = 60
REPORT_SECONDS: Final = 15.0


def run(
    command: Sequence[str], *, what: str, report: Report, step: str = "$^", environment: Mapping[str, str] | None = None
) -> str:
    """Run to the end and return the last lines of output. A line is reported when it begins as the expression `step`
    says, or 15 s after the last one.

    Raises:
        ImageError: it failed; has its last lines.
    """
    started = told = time.monotonic()
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            for line in process.stdout or ():
                tail.append(line.rstrip())
                now = time.monotonic()
                if re.match(step, line) or now - told >= REPORT_SECONDS:
                    told = now
                    report(f"{what}: {now - started:.0f} s, {line.strip()[:100]}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise ImageError(f"{what} failed with exit code {process.returncode}:\n" + "\n".join(tail))
    return "\n".join(tail)


# The program that builds: docker or buildah, whichever is there and answers.

BUILDAH_PACKAGES: Final = ("buildah", "debootstrap")
"""Debian's packages with which a machine builds both images; e2e on a node installs them with its own."""
BUILD_STAGE: Final = "build"
"""Name of the stage in both recipes in which everything is made."""
_POLICY: Final = Path("/etc/containers/policy.json")


@dataclass(frozen=True, slots=True)
class Build:
    """One call: the recipe and its context, `tag` without a registry, arguments, secrets by id."""

    dockerfile: Path
    context: Path
    tag: str
    arguments: Mapping[str, str]
    secrets: Mapping[str, Path]

    def options(self) -> list[str]:
        """What docker and buildah spell alike."""
        options = ["--file", str(self.context / self.dockerfile)]
        for name, value in self.arguments.items():
            options += ["--build-arg", f"{name}={value}"]
        for name, path in self.secrets.items():
            options += ["--secret", f"id={name},src={path}"]
        return options


class ImageEngine(Protocol):
    """What is needed of either."""

    def has(self, image: str) -> bool:
        """True when the image is in its store."""
        ...

    def import_root(self, root: Path, image: str, *, report: Report) -> None:
        """Make an image of one layer from a directory."""
        ...

    def build(self, build: Build, *, report: Report) -> None:
        """Build and tag. Raises ImageError with the last lines of output."""
        ...

    def save(self, tag: str, archive: Path, *, report: Report) -> None:
        """Write a docker-archive that names the image `tag`."""
        ...


class Docker:
    """A docker engine: it has its own store and pulls what a recipe names."""

    def has(self, image: str) -> bool:
        """See `ImageEngine`."""
        return _succeeds(["docker", "image", "inspect", image])

    def import_root(self, root: Path, image: str, *, report: Report) -> None:
        """See `ImageEngine`."""
        pack = f'tar -C "{root}" -c . | docker import --change "CMD [\\"bash\\"]" - {image}'
        run(["bash", "-o", "pipefail", "-c", pack], what=f"base image {image}", report=report)

    def build(self, build: Build, *, report: Report) -> None:
        """See `ImageEngine`."""
        command = ["docker", "build", "--progress", "plain", "--network", "host", "--tag", build.tag, *build.options()]
        environment = dict(os.environ) | {"DOCKER_BUILDKIT": "1"}
        run([*command, str(build.context)], what=build.tag, report=report, step=r"#\d+ \[", environment=environment)

    def save(self, tag: str, archive: Path, *, report: Report) -> None:
        """See `ImageEngine`."""
        run(["docker", "save", "--output", str(archive), tag], what=f"{tag}: saving", report=report)


@dataclass(frozen=True, slots=True)
class Buildah:
    """Buildah with a store of its own below `home`, so that nothing is left elsewhere on the machine.

    `chroot` isolation: build steps need no namespaces, no control groups and no container runtime, so it works where
    those are refused. Steps share the network of this machine, whose proxies they may need.
    """

    home: Path
    driver: str

    def command(self, *arguments: str) -> list[str]:
        """A call on this store."""
        store = ["--root", str(self.home / "storage"), "--runroot", str(self.home / "run")]
        return ["buildah", *store, "--storage-driver", self.driver, *arguments]

    def has(self, image: str) -> bool:
        """See `ImageEngine`."""
        return _succeeds(self.command("inspect", "--type", "image", image))

    def import_root(self, root: Path, image: str, *, report: Report) -> None:
        """See `ImageEngine`."""
        container = self._said("from", *self._policy(), "scratch")
        try:
            self._said("copy", "--quiet", container, str(root), "/")
            self._said("config", "--cmd", "bash", container)
            self._said("commit", *self._policy(), "--quiet", container, image)
        finally:
            self._said("rm", container)

    def build(self, build: Build, *, report: Report) -> None:
        """See `ImageEngine`."""
        how = ["--isolation", "chroot", "--network", "host", "--layers", "--format", "docker", *self._policy()]
        # Its caches for package downloads lie in its temporary directory.
        temporary = self.home / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ) | {"TMPDIR": str(temporary)}
        # The stage that is not in the image gets a name as well: what has none is removed afterwards, and with it
        # would go the steps that take minutes.
        stages = (["--tag", f"localhost/{build.tag}"], ["--target", BUILD_STAGE, "--tag", _stage_of(build.tag)])
        for stage, progress in zip(stages, (report, _silent), strict=True):
            command = self.command("build", *how, *stage, *build.options(), str(build.context))
            run(command, what=build.tag, report=progress, step=r"(\[\d+/\d+\] )?STEP ", environment=environment)
        self._tidy()

    def save(self, tag: str, archive: Path, *, report: Report) -> None:
        """See `ImageEngine`."""
        target = f"docker-archive:{archive}:docker.io/library/{tag}"
        run(self.command("push", *self._policy(), "--quiet", f"localhost/{tag}", target), what=tag, report=report)

    def _tidy(self) -> None:
        """Remove what earlier builds left: gigabytes after a few. No other build runs now (ensure_images locks).

        What a killed build holds on to may stay: an image that was built is no failure for that.
        """
        for arguments in (["rm", "--all"], ["rmi", "--prune"]):
            subprocess.run(self.command(*arguments), capture_output=True, check=False)

    def _policy(self) -> list[str]:
        """Debian leaves the policy about signatures to another package; without the file buildah refuses to work."""
        if _POLICY.is_file():
            return []
        policy = self.home / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        return ["--signature-policy", str(policy)]

    def _said(self, *arguments: str) -> str:
        answer = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise ImageError(f"`buildah {arguments[0]}` failed: {answer.stderr.strip()[-500:]}")
        return answer.stdout.strip()


def find_engine(home: Path, *, wanted: str = "auto") -> Docker | Buildah:
    """The engine: docker when its daemon answers, else buildah; `wanted` names one of them.

    Raises:
        ImageError: neither is there; names the packages to install.
    """
    if wanted in {"auto", "docker"} and _succeeds(["docker", "version", "--format", "{{.Server.Version}}"]):
        return Docker()
    if wanted in {"auto", "buildah"} and shutil.which("buildah"):
        home.mkdir(parents=True, exist_ok=True)
        for driver in ("overlay", "vfs"):
            engine = Buildah(home, driver)
            if _succeeds(engine.command("images", "--quiet")):
                return engine
        raise ImageError(f"buildah cannot use {home}/storage with the drivers overlay and vfs: `buildah info` says why")
    what = "neither docker nor buildah" if wanted == "auto" else f"no {wanted}"
    raise ImageError(
        f"images cannot be built: {what} answers. Install one (Debian, Ubuntu, as root: apt-get install "
        f"--no-install-recommends {' '.join(BUILDAH_PACKAGES)})"
    )


def _stage_of(tag: str) -> str:
    return f"localhost/{tag.partition(':')[0]}-{BUILD_STAGE}"


def _silent(_line: str) -> None:
    """A message is printed once."""


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
