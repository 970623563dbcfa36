"""A node that runs, and its images without any registry."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from compaction.local.cluster.certs import Authority
from compaction.local.cluster.control_plane import LocalState, RunningControlPlane, read_state, remove_state
from compaction.local.errors import NodeError
from compaction.local.processes.process import ProcessId, exclusive
from compaction.local.programs.binaries import BuildTarget
from tools.node import places
from tools.node.places import NodeLayout

# A node that runs: how to reach its API server from outside, how to run something inside, how to end it.

STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RunningNode:
    """`plane` is its API server (through the relay on loopback); `first` is process 1 inside, as seen from outside."""

    layout: NodeLayout
    plane: RunningControlPlane
    keeper: ProcessId
    first: int

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs `arguments` inside the node. Inside, the working directory is /."""
        return ["nsenter", "--target", str(self.first), "--mount", "--pid", "--net", "--", *arguments]

    def run(self, *arguments: str) -> str:
        """Run a command inside and return what it printed. Raises NodeError with its last words."""
        answer = subprocess.run(
            self.command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            raise NodeError(f"`{' '.join(arguments)}` failed inside the node: {answer.stderr.strip()}")
        return answer.stdout

    def hold(self, server: str) -> None:
        """Stop one of its servers, and keep it stopped until `release`."""
        (self.layout.hold / server).touch()

    def release(self, server: str) -> None:
        """Let a server that was held run again."""
        (self.layout.hold / server).unlink(missing_ok=True)

    def stop(self) -> None:
        """End everything in it and remove what it made on the host; safe to call twice.

        Raises:
            NodeError: a process or a control group is left; names it.
        """
        with exclusive(self.layout.lock, what=f"stopping the node in {self.layout.directory}", report=lambda _: None):
            state = read_state(self.layout.directory)
            # Somebody else may have stopped it, and started another one here.
            if state is not None and self.keeper in state.processes:
                end(self.layout, self.keeper)

    def __enter__(self) -> RunningNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def end(layout: NodeLayout, keeper: ProcessId) -> None:
    """Stop the keeper (which stops the node), then look whether anything is left; the caller holds the lock.

    Raises:
        NodeError: as `RunningNode.stop`.
    """
    keeper.stop(patience=STOP_SECONDS)
    left = remains(layout)
    if left:
        raise NodeError(f"the node in {layout.directory} left behind: {'; '.join(left)}")
    remove_state(layout.directory)


def remains(layout: NodeLayout) -> list[str]:
    """What of a stopped node is still on the host: control groups (removed, if they can be) and mounts."""
    left = [f"control group {path}" for path in places.remove_cgroups(layout.cgroup)]
    return left + [f"mount {path}" for path in mounts_below(layout.directory)]


def mounts_below(directory: Path) -> list[str]:
    """Mount points below a directory in the host's own mount namespace."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(directory)]


def adopt(layout: NodeLayout, state: LocalState) -> RunningNode:
    """The node that another process started and recorded in `state`.

    Raises:
        NodeError: it does not run, or not any more.
    """
    if not state.running:
        raise NodeError(f"no node runs in {layout.directory}")
    first, _ = kept(layout)
    return running_node(layout, state.url, keeper=state.processes[0], first=first)


def running_node(layout: NodeLayout, url: str, *, keeper: ProcessId, first: int) -> RunningNode:
    """Put together what is known."""
    authority = Authority(layout.certificates)
    plane = RunningControlPlane(layout.directory, url, layout.kubeconfig, (keeper,), authority)
    return RunningNode(layout, plane, keeper, first)


def kept(layout: NodeLayout) -> tuple[int, int]:
    """(process 1 as seen from outside, port of the relay) as the keeper wrote them."""
    document = json.loads(layout.kept.read_text())
    return int(document["pid"]), int(document["port"])


def log_tails(layout: NodeLayout, names: Sequence[str], *, tail: int) -> str:
    """The ends of some logs, each under its name, for an error message."""
    found = ((name, layout.log / f"{name}.log") for name in names)
    return "\n".join(
        f"--- {name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-tail:])
        for name, path in found
        if path.exists()
    )


# Images of a node without any registry: written here as archives, imported into containerd, kept between starts.
#
# The one image that a node itself needs (the sandbox that holds a pod's namespaces) is a static busybox, taken out of
# Debian's package without installing it. The same image is there for pods that only need a shell.

TOOLS_IMAGE = "localhost/busybox:1"
TOOLS = ("sh", "sleep", "cat", "echo", "ls", "nslookup", "wget", "id", "touch")
FOREVER = ["/bin/busybox", "sleep", "2000000000"]
CTR = ("ctr", "--namespace", "k8s.io")

Report = Callable[[str], None]


def tools_archive(layout: NodeLayout, *, report: Report) -> Path:
    """The archive of `TOOLS_IMAGE`, made when it is not there yet.

    Raises:
        NodeError: the package cannot be fetched.
    """
    archive = layout.images / "busybox.tar"
    if not archive.exists():
        layout.images.mkdir(parents=True, exist_ok=True)
        report("fetching busybox for the pods' sandboxes")
        with tempfile.TemporaryDirectory(prefix="compaction-node-") as temporary:
            program = _busybox(Path(temporary))
            partial = archive.with_suffix(".partial")
            links = {f"bin/{name}": "busybox" for name in TOOLS}
            write_archive(partial, TOOLS_IMAGE, files={"bin/busybox": program}, links=links, command=FOREVER)
            partial.replace(archive)
    return archive


def _busybox(directory: Path) -> bytes:
    for command in (["apt-get", "--quiet", "download", "busybox-static"], ["sh", "-c", "dpkg -x *.deb ."]):
        # World-writable for the unprivileged user that apt downloads as.
        directory.chmod(0o777)
        answer = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise NodeError(f"Debian's package busybox-static cannot be fetched: {answer.stderr.strip()}")
    return (directory / "bin" / "busybox").read_bytes()


def write_archive(
    path: Path, name: str, *, files: Mapping[str, bytes], links: Mapping[str, str], command: list[str]
) -> None:
    """An image of one layer in the form of `docker save`: executable `files`, symbolic `links`, an entrypoint."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for target, content in files.items():
            add_file(tar, target, content, mode=0o755)
        for target, source in links.items():
            entry = tarfile.TarInfo(target)
            entry.type, entry.linkname = tarfile.SYMTYPE, source
            tar.addfile(entry)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    settings: dict[str, Any] = {
        "architecture": BuildTarget.here().machine,
        "os": "linux",
        "config": {"Entrypoint": command, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    config = json.dumps(settings).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, mode="w") as tar:
        add_file(tar, "layer.tar", layer.getvalue())
        add_file(tar, config_name, config)
        add_file(tar, "manifest.json", json.dumps(manifest).encode())


def add_file(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    """Add a file to an archive that is being written."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def import_archive(node: RunningNode, archive: Path, *, report: Report = lambda _: None) -> bool:
    """Give the node the images of an archive (`docker save`, or `buildah push docker-archive:`); False when it has
    them from an earlier import of the same bytes.

    Raises:
        NodeError: containerd refused it.
    """
    known = node.layout.store / "imported.json"
    imported: dict[str, list[str]] = json.loads(known.read_text()) if known.exists() else {}
    digest = _digest(archive)
    names = _names(archive)
    if imported.get(digest) == names and set(names) <= set(image_names(node)):
        return False
    started = time.monotonic()
    report(f"importing {', '.join(names)}")
    # By an absolute path: inside, the working directory is another one.
    node.run(*CTR, "images", "import", str(archive.resolve()))
    # A name now means these bytes, and no others.
    imported = {old: kept for old, kept in imported.items() if not set(kept) & set(names)} | {digest: names}
    partial = known.with_suffix(".partial")
    partial.write_text(json.dumps(imported))
    partial.replace(known)
    report(f"imported {', '.join(names)} in {time.monotonic() - started:.0f} s")
    return True


def image_names(node: RunningNode) -> list[str]:
    """The images that the node has."""
    return node.run(*CTR, "images", "list", "--quiet").split()


def _digest(archive: Path) -> str:
    with archive.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        if manifest is None:
            raise NodeError(f"{archive} is no archive of images")
        return sorted(full_name(name) for image in json.load(manifest) for name in image.get("RepoTags") or ())


def full_name(name: str) -> str:
    """A name as containerd keeps it: what names no registry is of the default one."""
    registry, slash, _ = name.partition("/")
    if slash and (registry == "localhost" or "." in registry or ":" in registry):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def forget_images(layout: NodeLayout) -> None:
    """Remove the images of a node that does not run, and their layers."""
    for directory in (layout.store, layout.images):
        if directory.exists():
            shutil.rmtree(directory)
