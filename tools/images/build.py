"""The two images as archives in the cache, built when something in them has changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Final

from compaction.local.errors import ImageError
from compaction.local.processes.process import cache_directory, exclusive
from tools.images.engine import Build, Docker, ImageEngine, Report, find_engine, run

# The two images: their names, their Dockerfiles, and what each is made from.

CHECKOUT: Final = Path(__file__).parents[2]
"""The repository: images are made from a checkout, not from an installed package."""
IGNORED: Final = ".dockerignore"
"""Says what of a checkout reaches a build, and so which parts of the package are in no image."""
RELEASE: Final = "bookworm"
"""Debian's release below both images; the Dockerfiles' own BASE_IMAGE is the published image of it."""


class Image(StrEnum):
    """What is built."""

    OPERATOR = "operator"
    WORKER = "worker"

    @property
    def tag(self) -> str:
        """Name and version, as manifests and policies write it."""
        return f"compaction-{self}:{version('compaction-operator')}"

    @property
    def dockerfile(self) -> Path:
        """Its recipe, relative to the checkout."""
        return Path("Dockerfile") if self is Image.OPERATOR else Path("spark-images/Dockerfile")


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image as a docker-archive (what `docker load` and `ctr images import` read). `bytes`: size of the archive,
    which is not compressed.
    """

    image: Image
    archive: Path
    bytes: int
    reused: bool

    @property
    def tag(self) -> str:
        """Its name in the archive."""
        return self.image.tag


def sources(image: Image, checkout: Path = CHECKOUT) -> Iterator[Path]:
    """The files that make the image what it is, sorted.

    Raises:
        ImageError: `checkout` is none of this project.
    """
    if not (checkout / image.dockerfile).is_file():
        raise ImageError(f"{checkout} has no {image.dockerfile}: images are built from a checkout of the project")
    yield checkout / image.dockerfile
    # The metadata of the package names its license files, so an image cannot be built without them.
    for name in (IGNORED, "LICENSE", "NOTICE", "README.md", "pyproject.toml", "requirements-build.txt"):
        yield checkout / name
    yield checkout / f"requirements-{image}.txt"
    for path in sorted((checkout / "spark-images").iterdir()):
        if path.is_file():
            yield path
    rules = (checkout / IGNORED).read_text().splitlines()
    for path in sorted((checkout / "operator").rglob("*")):
        if path.is_file() and reaches_build(path.relative_to(checkout), rules):
            yield path


def reaches_build(path: PurePath, rules: Sequence[str]) -> bool:
    """Whether docker and buildah let a file of the checkout into a build. `rules`: the lines of .dockerignore, of which
    the last one that matches the file or a directory above it decides.
    """
    here = True
    for line in rules:
        rule = line.strip()
        if rule and not rule.startswith("#") and _matches(path, rule.removeprefix("!")):
            here = rule.startswith("!")
    return here


def _matches(path: PurePath, pattern: str) -> bool:
    """Wildcards stay within a name; `**/` in front stands for any directories, none included."""
    *_, name = wanted = PurePath(pattern).parts
    if wanted[0] == "**":
        return any(fnmatchcase(part, name) for part in path.parts)
    return len(path.parts) >= len(wanted) and all(map(fnmatchcase, path.parts, wanted))


def content_key(image: Image, *, base: str, checkout: Path = CHECKOUT) -> str:
    """16 hex digits that change when anything in the image may: its sources, its base, its version."""
    digest = hashlib.sha256(f"{image.tag}|{base}".encode())
    for path in sources(image, checkout):
        digest.update(f"|{path.relative_to(checkout)}|{path.stat().st_mode & 0o111:o}|".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


# The configuration by which this machine reaches packages, handed to a build as secrets: apt, pip and the certificates
# they trust.
#
# A build step sees them under /run/secrets while it runs; no layer, no label and no log has them. A machine without
# any such configuration hands over nothing but its package sources, and the tools use their own defaults.

MOUNT: Final = "/run/secrets"
_CA_VARIABLES: Final = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PIP_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_APT_SETTING: Final = re.compile(r"^Acquire::.*;$")
_APT_FILES: Final = ("CaInfo", "CaPath", "SslCert", "SslKey")


def write_secrets(directory: Path, release: str, environment: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Secret id -> file in `directory` (which the caller removes); only what this machine has."""
    environment = os.environ if environment is None else environment
    bundle = certificates(environment)
    found = {
        "apt.list": package_sources(release),
        "apt.conf": apt_settings(has_certificates=bundle is not None),
        "pip.conf": pip_settings(),
    }
    if not found["apt.list"]:
        # The base image's own sources and settings are as good as any.
        del found["apt.list"], found["apt.conf"]
    secrets = {}
    for name, text in found.items():
        if text:
            secrets[name] = directory / name
            secrets[name].write_text(text)
    if bundle is not None:
        secrets["ca.crt"] = directory / "ca.crt"
        secrets["ca.crt"].write_bytes(bundle.read_bytes())
    return secrets


def certificates(environment: Mapping[str, str]) -> Path | None:
    """The bundle that a proxy's certificate was added to, if the environment names one."""
    named = (Path(environment[name]) for name in _CA_VARIABLES if environment.get(name))
    return next((path for path in named if path.is_file()), None)


def package_sources(release: str) -> str:
    """Lines of a sources.list for `release`, from what apt uses here; empty when it knows no such release."""
    if shutil.which("apt-get") is None:
        return ""
    form = "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
    answer = _said(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    lines = set()
    for target in answer.splitlines():
        origin, _, rest = target.partition("|")
        uri, suite, component = rest.rsplit("|", 2)
        # Read before the first `apt-get update` the origin is empty.
        if origin in {"Debian", ""} and suite.partition("-")[0].partition("/")[0] == release and component == "main":
            lines.add(f"deb {uri} {suite} main")
    return "".join(f"{line}\n" for line in sorted(lines))


def debian_mirror(release: str) -> str | None:
    """Where apt gets `release` here; None leaves debootstrap its own default."""
    for line in package_sources(release).splitlines():
        _, uri, suite, _ = line.split()
        if suite == release:
            return uri
    return None


def apt_settings(*, has_certificates: bool) -> str:
    """A configuration file for apt inside a build: how this machine fetches, and from where."""
    lines = [line for line in _said(["apt-config", "dump"]).splitlines() if _APT_SETTING.match(line)]
    kept = [line for line in lines if not any(word in line for word in _APT_FILES)]
    if has_certificates:
        kept.append(f'Acquire::https::CaInfo "{MOUNT}/ca.crt";')
    return "\n".join([f'Dir::Etc::sourcelist "{MOUNT}/apt.list";', 'Dir::Etc::sourceparts "-";', *kept, ""])


def pip_settings() -> str:
    """A configuration file for pip inside a build, from pip's own view of this machine; empty without any."""
    kept = []
    for line in _said([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in _PIP_SETTINGS:
            kept.append(f"{name} = {value.strip().strip(chr(39))}")
    return "\n".join(["[global]", *kept, ""]) if kept else ""


def _said(command: list[str]) -> str:
    """Standard output; empty when the command is not there or fails: a build then does without."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


# The base of both images, made by debootstrap: where no image registry can be reached, a Debian mirror still can.
#
# The system that debootstrap unpacks is brought up to date from the same package sources, and then relieved of what
# Debian's own slim images leave out as well: documentation, translations, package lists. It names no mirror: the
# sources that were used to make it are not in it.

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


# `ensure_images`: the images as archives in the cache, built when something in them has changed.
#
#     ~/.cache/compaction-operator/images/
#         compaction-worker-<version>-<key>.tar     the result; its name carries the key of its content
#         store/                                    buildah's layers, base image and downloads; may be removed
#
# The three newest archives of each image are kept. A second run with nothing changed reads the sources and answers
# within a second.

_KEPT: Final = 3
_BASE: Final = f"localhost/compaction-base:{RELEASE}-{RECIPE}"


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How to build. `base_image`: instead of Debian's; `engine`: auto, docker or buildah; `fresh`: rebuild the base,
    and with it every layer.
    """

    base_image: str | None = None
    engine: str = "auto"
    fresh: bool = False
    checkout: Path = CHECKOUT


def images_directory() -> Path:
    """Where archives and layers are kept."""
    return cache_directory() / "images"


def ensure_images(
    images: Sequence[Image] = tuple(Image), *, report: Report, settings: BuildSettings | None = None
) -> tuple[BuiltImage, ...]:
    """The archives of these images, in the same order; first built takes minutes, unchanged ones a second.

    Raises:
        ImageError: no engine, no base image, or a step failed.
    """
    settings = settings or BuildSettings()
    directory = images_directory()
    with exclusive(directory / "images.lock", what="building images", report=report):
        return tuple(_ensure(image, directory, settings, report) for image in images)


def archive_path(image: Image, directory: Path, settings: BuildSettings) -> Path:
    """Where the archive of the image's present content belongs."""
    key = content_key(image, base=settings.base_image or _BASE, checkout=settings.checkout)
    return directory / f"{image.tag.replace(':', '-')}-{key}.tar"


def _ensure(image: Image, directory: Path, settings: BuildSettings, report: Report) -> BuiltImage:
    archive = archive_path(image, directory, settings)
    if archive.is_file() and not settings.fresh:
        report(f"{image.tag}: unchanged")
        return BuiltImage(image, archive, archive.stat().st_size, reused=True)
    started = time.monotonic()
    engine = find_engine(directory / "store", wanted=settings.engine)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=directory) as making:
        secrets = write_secrets(Path(making), RELEASE)
        build = Build(
            dockerfile=image.dockerfile,
            context=settings.checkout,
            tag=image.tag,
            arguments={
                **_base_argument(engine, settings, secrets, Path(making), report),
                "VERSION": image.tag.partition(":")[2],
                "REVISION": _revision(settings.checkout),
            },
            secrets=secrets,
        )
        engine.build(build, report=report)
        report(f"{image.tag}: saving")
        engine.save(image.tag, Path(making) / archive.name, report=report)
        (Path(making) / archive.name).replace(archive)
    _remove_old(directory.glob(f"{image.tag.partition(':')[0]}-*.tar"))
    size = archive.stat().st_size
    report(f"{image.tag}: built in {time.monotonic() - started:.0f} s, {size >> 20} MiB")
    return BuiltImage(image, archive, size, reused=False)


def _base_argument(
    engine: ImageEngine, settings: BuildSettings, secrets: dict[str, Path], making: Path, report: Report
) -> dict[str, str]:
    """BASE_IMAGE, made if need be. A docker engine pulls the one that the recipe names."""
    if settings.base_image is not None:
        return {"BASE_IMAGE": settings.base_image}
    if isinstance(engine, Docker):
        return {}
    if settings.fresh or not engine.has(_BASE):
        check_can_make()
        root = making / "root"
        make_root(root, RELEASE, secrets, report=report)
        report("base image: storing")
        engine.import_root(root, _BASE, report=report)
    return {"BASE_IMAGE": _BASE}


def _remove_old(archives: Iterable[Path]) -> None:
    for old in sorted(archives, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        old.unlink()


def _revision(checkout: Path) -> str:
    """The commit, for the label; `unknown` outside of a repository."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return answer.stdout.strip() or "unknown"
