"""The two images: their names, their Dockerfiles, and what each is made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Final

from compaction.local.errors import ImageError

CHECKOUT: Final = Path(__file__).parents[4]
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
