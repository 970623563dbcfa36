"""The files of the checkout that are made from others are what those say, and who changes one of them is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compaction.exceptions import ShippedFilesError
from compaction.local.shipped import ShippedFile, drifted, shipped_files, write_files
from compaction.local.shipped.__main__ import main
from compaction.local.shipped.files import INSTALL, INSTALL_HEADER, METRICS_PAGE
from support.cluster.rendered import NAMESPACED, ROOT, documents


def test_the_files_of_this_checkout_are_up_to_date(binaries: object) -> None:
    assert drifted(ROOT, shipped_files()) == [], "run `make manifests`"


def test_install_yaml_is_the_overlay_for_one_namespace(rendered: object) -> None:
    text = (ROOT / INSTALL).read_text()
    assert text.startswith(INSTALL_HEADER)
    assert callable(rendered)
    assert documents(text) == rendered(NAMESPACED)


def test_only_what_differs_is_written_and_checked_files_stay(tmp_path: Path) -> None:
    files = (ShippedFile(Path("same"), lambda root: "as it is"), ShippedFile(Path("other"), lambda root: "now"))
    (tmp_path / "same").write_text("as it is")
    assert drifted(tmp_path, files) == [Path("other")]
    assert not (tmp_path / "other").exists()
    assert write_files(tmp_path, files) == [Path("other")]
    assert (tmp_path / "other").read_text() == "now"
    assert drifted(tmp_path, files) == []


def test_a_check_names_what_differs(tmp_path: Path, binaries: object, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("manifests", "crds", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    assert main(["--check", str(tmp_path)]) == 0
    with (tmp_path / INSTALL).open("a") as file:
        file.write("# changed by hand\n")
    assert main(["--check", str(tmp_path)]) == 1
    assert f"{INSTALL}; run `make manifests`" in capsys.readouterr().out
    assert main(["--write", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"wrote {INSTALL}\n"


@pytest.mark.parametrize("command", ["--check", "--write"])
def test_a_page_without_a_place_for_the_table_is_an_error(
    tmp_path: Path, binaries: object, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("manifests", "crds", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / METRICS_PAGE).write_text("# Metrics\n")
    assert main([command, str(tmp_path)]) == 1
    assert "error: the page of metrics has no place for its table" in capsys.readouterr().err


def test_what_kustomize_refuses_is_said_in_its_words(tmp_path: Path, binaries: object) -> None:
    with pytest.raises(ShippedFilesError, match="kubectl kustomize"):
        drifted(tmp_path, [one for one in shipped_files() if one.path == INSTALL])
