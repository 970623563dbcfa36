"""`ensure_images`: the images as archives in the cache, built when something in them has changed.

    ~/.cache/compaction-operator/images/
        compaction-worker-<version>-<key>.tar     the result; its name carries the key of its content
        store/                                    buildah's layers, base image and downloads; may be removed

The three newest archives of each image are kept. A second run with nothing changed reads the sources and answers within
a second.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.local.cache import cache_directory
from compaction.local.images import base
from compaction.local.images.engine import Build, Docker, ImageEngine, find_engine
from compaction.local.images.model import CHECKOUT, RELEASE, BuiltImage, Image, content_key
from compaction.local.images.running import Report
from compaction.local.images.secrets import write_secrets
from compaction.local.processes.locks import exclusive

_KEPT: Final = 3
_BASE: Final = f"localhost/compaction-base:{RELEASE}-{base.RECIPE}"


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
        base.check_can_make()
        root = making / "root"
        base.make_root(root, RELEASE, secrets, report=report)
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
