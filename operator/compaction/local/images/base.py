"""The base of both images, made by debootstrap: where no image registry can be reached, a Debian mirror still can.

What debootstrap unpacks is brought up to date from the same package sources, and then relieved of what Debian's own
slim images leave out as well: documentation, translations, package lists. It names no mirror: the sources that were
used to make it are not in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from compaction.local.errors import ImageError
from compaction.local.images.running import Report, run
from compaction.local.images.secrets import debian_mirror

RECIPE: Final = "2"
"""Grows when what is done here changes, so that a base made before is not used any more."""
_USELESS: Final = (
    "usr/share/info/*",
    "usr/share/man/*",
    "usr/share/locale/*",
    "usr/share/lintian/*",
    "var/cache/apt/*",
    "var/lib/apt/lists/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/log/*",
    "tmp/*",
    "etc/hostname",
    "etc/hosts",
    "etc/resolv.conf",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d/*",
)
_DPKG: Final = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/lintian/*
"""
_APT: Final = """\
Acquire::Languages "none";
APT::Install-Recommends "false";
APT::AutoRemove::SuggestsImportant "false";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""


def make_root(root: Path, release: str, secrets: dict[str, Path], *, report: Report) -> None:
    """Fill the empty directory `root` with a slim Debian; about a minute.

    Raises:
        ImageError: debootstrap or apt failed; has their last lines.
    """
    mirror = debian_mirror(release)
    run(
        ["debootstrap", "--variant=minbase", release, str(root), *([mirror] if mirror else [])],
        what=f"base image: debootstrap {release}",
        report=report,
        step="I: Configuring base",
    )
    (root / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True, exist_ok=True)
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_DPKG)
    (root / "etc/apt/apt.conf.d/slim").write_text(_APT)
    if "apt.list" in secrets:
        _upgrade(root, secrets, report=report)
    for pattern in _USELESS:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for path in (root / "usr/share/doc").rglob("*"):
        if path.name != "copyright" and not path.is_dir():
            path.unlink()


def _upgrade(root: Path, secrets: dict[str, Path], *, report: Report) -> None:
    """Bring in what was fixed since the release. No service is started for it: there is none in a minimal system."""
    with _handed_over(root, secrets) as environment:
        for arguments in (["update"], ["--yes", "--no-install-recommends", "dist-upgrade"]):
            run(
                ["chroot", str(root), "apt-get", "--quiet", *arguments],
                what=f"base image: apt-get {arguments[-1]}",
                report=report,
                environment=environment,
            )


@contextlib.contextmanager
def _handed_over(root: Path, secrets: dict[str, Path]) -> Iterator[dict[str, str]]:
    """The secrets where a build step expects them, for the block only."""
    place = root / "run/secrets"
    place.mkdir(parents=True)
    try:
        for name, path in secrets.items():
            shutil.copyfile(path, place / name)
        yield {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
            "APT_CONFIG": "/run/secrets/apt.conf",
            "LC_ALL": "C.UTF-8",
        }
    finally:
        shutil.rmtree(place)


def check_can_make() -> None:
    """Raises ImageError when this machine cannot make a base; says what to install or to give instead."""
    if sys.platform != "linux" or shutil.which("debootstrap") is None:
        raise ImageError(
            "no base image: install debootstrap (Debian, Ubuntu: apt-get install --no-install-recommends debootstrap), "
            "or name an image with --base-image that is here or can be pulled"
        )
    if os.geteuid() != 0:
        raise ImageError("debootstrap needs root: run it with sudo, or name an image with --base-image")
