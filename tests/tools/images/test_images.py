"""How images are built: what makes an archive a new one, who builds, what a build is told, what goes wrong."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.local.errors import ImageError
from tools.images import build
from tools.images.build import CHECKOUT, Image, content_key, sources
from tools.images.engine import BUILDAH_PACKAGES, Build, Buildah, Docker, find_engine, run
from tools.node.prepare import PACKAGES

Programs = Callable[..., Path]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the images are made of."""
    copy = tmp_path / "checkout"
    for image in Image:
        for path in sources(image):
            place = copy / path.relative_to(CHECKOUT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
    return copy


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """PATH holds these programs only; each is a shell script."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))

    def make(**scripts: str) -> Path:
        for name, script in scripts.items():
            path = directory / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return directory

    return make


@pytest.mark.parametrize("image", list(Image))
def test_the_key_is_that_of_the_content(image: Image, checkout: Path) -> None:
    first = content_key(image, base="b", checkout=checkout)
    assert first == content_key(image, base="b", checkout=CHECKOUT), "not of the place or the times"
    assert first != content_key(image, base="other", checkout=checkout)
    with (checkout / "operator/compaction/__init__.py").open("a") as file:
        file.write("# changed\n")
    assert first != content_key(image, base="b", checkout=checkout)


def test_what_runs_only_in_one_image_leaves_the_other_alone(checkout: Path) -> None:
    keys = {image: content_key(image, base="b", checkout=checkout) for image in Image}
    (checkout / "requirements-worker.txt").write_text("")
    assert content_key(Image.OPERATOR, base="b", checkout=checkout) == keys[Image.OPERATOR]
    assert content_key(Image.WORKER, base="b", checkout=checkout) != keys[Image.WORKER]


def test_an_executable_bit_counts(checkout: Path) -> None:
    before = content_key(Image.WORKER, base="b", checkout=checkout)
    (checkout / "spark-images/entrypoint.sh").chmod(0o644)
    assert content_key(Image.WORKER, base="b", checkout=checkout) != before


def test_nothing_but_a_checkout_can_be_built(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="built from a checkout"):
        list(sources(Image.WORKER, tmp_path))


def test_everything_in_the_key_reaches_the_build() -> None:
    """The list of what a build context holds names every file that the recipes may copy."""
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*", "nothing gets in unless it is named"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    for image in Image:
        for path in sources(image):
            first = path.relative_to(CHECKOUT).parts[0]
            assert first in let_in | {".dockerignore"}, first


# --- the engine ---


def test_docker_is_taken_when_its_daemon_answers(programs: Programs, tmp_path: Path) -> None:
    programs(docker="exit 0", buildah="exit 0")
    assert isinstance(find_engine(tmp_path / "home"), Docker)


def test_a_docker_without_a_daemon_is_none(programs: Programs, tmp_path: Path) -> None:
    programs(docker="exit 1", buildah="exit 0")
    engine = find_engine(tmp_path / "home")
    assert isinstance(engine, Buildah)
    assert engine.driver == "overlay"


def test_where_layers_cannot_be_mounted_they_are_copied(programs: Programs, tmp_path: Path) -> None:
    programs(buildah='case "$*" in *overlay*) exit 1;; esac')
    engine = find_engine(tmp_path / "home")
    assert isinstance(engine, Buildah)
    assert engine.driver == "vfs"


@pytest.mark.parametrize("wanted", ["auto", "docker", "buildah"])
def test_without_an_engine_the_packages_are_named(wanted: str, programs: Programs, tmp_path: Path) -> None:
    programs()
    with pytest.raises(ImageError, match="apt-get install --no-install-recommends buildah debootstrap"):
        find_engine(tmp_path / "home", wanted=wanted)


def test_e2e_installs_what_a_build_needs() -> None:
    assert set(BUILDAH_PACKAGES) <= set(PACKAGES.values())


def test_a_buildah_that_can_keep_nothing_is_told_of(programs: Programs, tmp_path: Path) -> None:
    programs(buildah="exit 1")
    with pytest.raises(ImageError, match="drivers overlay and vfs"):
        find_engine(tmp_path / "home")


def call(tmp_path: Path, **secrets: Path) -> Build:
    return Build(
        dockerfile=Path("Dockerfile"),
        context=tmp_path,
        tag="x:1",
        arguments={"BASE_IMAGE": "b"},
        secrets={name.replace("_", "."): path for name, path in secrets.items()},
    )


def test_both_engines_are_told_the_same(programs: Programs, tmp_path: Path) -> None:
    told = tmp_path / "told"
    programs(docker=f'echo "$@" >>{told}', buildah=f'echo "$@" >>{told}')
    (tmp_path / "policy").mkdir()
    for engine in (Docker(), Buildah(tmp_path / "policy", "overlay")):
        engine.build(call(tmp_path, pip_conf=Path("/p")), report=lambda _: None)
    docker, *buildahs = told.read_text().splitlines()
    assert [line for line in buildahs if line.endswith(("rm --all", "rmi --prune"))] == buildahs[-2:]
    buildah, stage = buildahs[:-2]
    assert "--target build --tag localhost/x-build " in stage
    for line in (docker, buildah):
        assert f"--file {tmp_path}/Dockerfile --build-arg BASE_IMAGE=b --secret id=pip.conf,src=/p" in line
        assert line.endswith(str(tmp_path))
    assert "--tag x:1 " in docker
    assert "--tag localhost/x:1 " in buildah
    assert "--isolation chroot --network host" in buildah


def test_a_failed_build_shows_its_last_words(programs: Programs, tmp_path: Path) -> None:
    programs(docker="echo step one; echo no such package >&2; exit 3")
    with pytest.raises(ImageError, match=r"x:1 failed with exit code 3:\nstep one\nno such package"):
        Docker().build(call(tmp_path), report=lambda _: None)


def test_steps_are_reported_as_they_come() -> None:
    said: list[str] = []
    run(["/bin/sh", "-c", "echo STEP 1; echo noise; echo STEP 2"], what="w", report=said.append, step="STEP ")
    assert [line.rpartition(", ")[2] for line in said] == ["STEP 1", "STEP 2"]


# --- the cache ---


def test_an_unchanged_image_is_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    programs()  # neither docker nor buildah
    monkeypatch.setenv("COMPACTION_CACHE", str(tmp_path / "cache"))
    directory = build.images_directory()
    directory.mkdir(parents=True)
    archive = build.archive_path(Image.OPERATOR, directory, build.BuildSettings())
    archive.write_bytes(b"tar")
    said: list[str] = []
    (built,) = build.ensure_images([Image.OPERATOR], report=said.append)
    assert (built.archive, built.bytes, built.reused) == (archive, 3, True)
    with pytest.raises(ImageError, match="cannot be built"):
        build.ensure_images([Image.WORKER], report=said.append)
    assert [path.name for path in directory.iterdir() if path.name.startswith(".making")] == []


# --- what a build is told of this machine ---


def test_apt_is_handed_over_without_paths_of_this_machine(programs: Programs, tmp_path: Path) -> None:
    programs(
        apt_config="""echo 'Acquire::Retries "3";'; echo 'Acquire::https::CaInfo "/mine.crt";'""",
        apt_get="""
        echo 'Debian|http://mirror/debian/|bookworm|main'; echo 'Debian|http://mirror/debian/|bookworm|contrib'
        echo 'Debian|http://mirror/security/|bookworm-security|main'; echo 'Other|http://other/|stable|main'""",
    )
    assert build.package_sources("bookworm") == (
        "deb http://mirror/debian/ bookworm main\ndeb http://mirror/security/ bookworm-security main\n"
    )
    assert build.debian_mirror("bookworm") == "http://mirror/debian/"
    assert build.debian_mirror("trixie") is None
    settings = build.apt_settings(has_certificates=True)
    assert 'Acquire::Retries "3";' in settings
    assert "/mine.crt" not in settings
    assert 'Acquire::https::CaInfo "/run/secrets/ca.crt";' in settings
    assert "Arch" not in settings


def test_a_machine_without_apt_hands_over_nothing_of_it(programs: Programs, tmp_path: Path) -> None:
    programs()
    assert not {"apt.conf", "apt.list"} & set(build.write_secrets(tmp_path, "bookworm", {}))


def test_the_bundle_with_a_proxys_certificate_is_handed_over(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("PEM")
    found = build.write_secrets(tmp_path, "none", {"PIP_CERT": str(bundle), "SSL_CERT_FILE": "/nowhere"})
    assert found["ca.crt"].read_text() == "PEM"
    assert build.certificates({"PIP_CERT": "/nowhere"}) is None


def test_the_entry_point_is_executable() -> None:
    assert os.access(CHECKOUT / "spark-images/entrypoint.sh", os.X_OK)
