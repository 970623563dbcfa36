"""Containers without a container runtime: an image's archive, unpacked, and programs in it as a pod would run them.

Own mount and process namespaces, a read-only root, the image's user, environment and entry point, no privileges to
gain, tmpfs where a pod has an emptyDir. The network is the machine's, so a control plane on loopback is reached.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_INIT = r"""
set -eu
root=$1; user=$2; volumes=$3; writable=$4; directory=$5; shift 5
mount --bind "$root" "$root"
mount -t tmpfs tmpfs "$root/run"
IFS=,
for volume in $volumes; do
    if [ -f "${volume%=*}" ]; then : >>"$root${volume#*=}"; else mkdir -p "$root${volume#*=}"; fi
    mount --bind "${volume%=*}" "$root${volume#*=}"
done
mount -o remount,bind,ro "$root"
for place in $writable; do mount -t tmpfs -o mode=1777 tmpfs "$root$place"; done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
unset IFS
exec setpriv --no-new-privs chroot --userspec="$user" --groups= "$root" /usr/bin/env -i -C "$directory" "$@"
"""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An image's root directory and its configuration, as `docker image inspect` shows it below Config."""

    root: Path
    config: Mapping[str, Any]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.config.get("Labels") or {}

    @property
    def files(self) -> Iterator[Path]:
        """Every file of the image."""
        return (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    def command(self, *words: str, pod: Pod | None = None) -> list[str]:
        """A command line that runs the image's entry point with these words."""
        pod = pod or Pod()
        volumes = ",".join(
            f"{source}={place}" for source, place in {Path("/etc/hosts"): "/etc/hosts", **pod.volumes}.items()
        )
        environment = [*self.config["Env"], *(f"{name}={value}" for name, value in pod.environment.items())]
        return [
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
            "sh", "-c", _INIT, "sh", str(self.root), self.config["User"], volumes, ",".join(pod.writable),
            self.config["WorkingDir"] or "/", *environment, *self.config["Entrypoint"], *words,
        ]  # fmt: skip

    def run(self, *words: str, pod: Pod | None = None) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(self.command(*words, pod=pod), capture_output=True, text=True, check=False)

    @contextmanager
    def running(self, *words: str, log: Path, pod: Pod | None = None) -> Iterator[Container]:
        """Run beside the test; killed at the latest at the end of the block. Output goes to `log`."""
        with log.open("w") as output:
            process = subprocess.Popen(self.command(*words, pod=pod), stdout=output, stderr=output)
        with process:
            try:
                yield Container(process, log)
            finally:
                process.kill()


@dataclass(frozen=True, slots=True)
class Pod:
    """What a pod adds: environment, volumes (host path -> place), and where emptyDirs are."""

    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[Path, str] = field(default_factory=dict)
    writable: Sequence[str] = ("/tmp",)


@dataclass(frozen=True, slots=True)
class Container:
    """A running one. Signals go to its first process, as a kubelet's do."""

    process: subprocess.Popen[bytes]
    log: Path

    def terminate(self) -> None:
        """SIGTERM to process 1 of the container (the only child of `unshare`)."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        subprocess.run(["kill", f"-{signal.SIGTERM.name[3:]}", *children], check=True)

    def wait(self, timeout: float) -> int:
        """The exit code."""
        return self.process.wait(timeout)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


def unpack(archive: Path, directory: Path) -> Unpacked:
    """The layers of a docker-archive on top of each other; what a layer deletes (`.wh.NAME`) is deleted."""
    root = directory / "root"
    root.mkdir(parents=True)
    with tarfile.open(archive) as image:
        manifest = json.load(_member(image, "manifest.json"))[0]
        config = json.load(_member(image, manifest["Config"]))["config"]
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=_member(image, name)) as layer:
                # As it is: files of every owner, devices, absolute links. Before Python 3.11.4 there are no filters.
                layer.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
                for member in layer:
                    path = Path(member.name)
                    if path.name.startswith(".wh."):
                        gone = root / path.parent / path.name.removeprefix(".wh.")
                        shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink(missing_ok=True)
                    else:
                        layer.extract(member, root)
    return Unpacked(root, config)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None, f"{archive.name!r} has no {name}"
    return found
