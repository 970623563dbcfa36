"""The files of the checkout that are made from others are what those say, and who changes one of them is told."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from compaction.local.errors import ShippedFilesError
from support.cluster.control_plane import NAMESPACED, ROOT, documents
from tools.shipped import ShippedFile, definition_files, drifted, files, shipped_files, write_files
from tools.shipped.__main__ import main
from tools.shipped.files import DEFINITIONS, INSTALL, INSTALL_HEADER, METADATA, METRICS_PAGE, RULES


def copy_of_the_checkout(root: Path) -> None:
    for name in ("manifests", "crds", "docs"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / METADATA, root / METADATA)


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
    copy_of_the_checkout(tmp_path)
    assert main(["--check", str(tmp_path)]) == 0
    with (tmp_path / INSTALL).open("a") as file:
        file.write("# changed by hand\n")
    assert main(["--check", str(tmp_path)]) == 1
    assert f"{INSTALL}; run `make manifests`" in capsys.readouterr().out
    assert main(["--write", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"wrote {INSTALL}\n"


def test_definitions_are_checked_written_and_removed(
    tmp_path: Path, binaries: object, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_of_the_checkout(tmp_path)
    changed, *_ = (file.path for file in definition_files())
    obsolete = DEFINITIONS / "compaction.dev_compactionplans.yaml"
    (tmp_path / changed).unlink()
    (tmp_path / obsolete).write_text("kind: CustomResourceDefinition\n")
    others = {path.name for path in (tmp_path / DEFINITIONS).iterdir()} - {obsolete.name}
    assert main(["--check", str(tmp_path)]) == 1
    assert f"error: out of date: {obsolete}, {changed}" in capsys.readouterr().out
    assert main(["--write", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(
        f"removed {obsolete}: the resource does not exist any more\nwrote {changed}\n"
    )
    assert {path.name for path in (tmp_path / DEFINITIONS).iterdir()} == others | {changed.name}
    assert main(["--check", str(tmp_path)]) == 0


def test_files_are_checked_or_written_never_both(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--write", str(tmp_path), "--check", str(tmp_path)])


@pytest.mark.parametrize("command", ["--check", "--write"])
def test_a_page_without_a_place_for_the_table_is_an_error(
    tmp_path: Path, binaries: object, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_of_the_checkout(tmp_path)
    (tmp_path / METRICS_PAGE).write_text("# Metrics\n")
    assert main([command, str(tmp_path)]) == 1
    assert "error: the page of metrics has no place for its table" in capsys.readouterr().err


def test_what_kustomize_refuses_is_said_in_its_words(tmp_path: Path, binaries: object) -> None:
    with pytest.raises(ShippedFilesError, match="kubectl kustomize"):
        drifted(tmp_path, [file for file in shipped_files() if file.path == INSTALL])


def test_alerts_link_to_the_repository_of_the_metadata(
    tmp_path: Path, binaries: object, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_of_the_checkout(tmp_path)
    metadata = (tmp_path / METADATA).read_text()
    assert metadata.count("\nRepository = ") == 1
    (tmp_path / METADATA).write_text(
        re.sub(r"(?m)^Repository = .*$", 'Repository = "https://mirror.example/c/"', metadata)
    )
    assert main(["--write", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"wrote {RULES}\n"
    urls = re.findall(r"runbook_url: (\S+)", (tmp_path / RULES).read_text())
    alerts = re.findall(r"- alert: (\w+)", (tmp_path / RULES).read_text())
    assert urls == [f"https://mirror.example/c/blob/main/docs/runbooks/{alert}.md" for alert in alerts]


@pytest.mark.parametrize(
    ("metadata", "rules", "words"),
    [
        ("[project]\n", "- alert: A\n  runbook_url: x\n", "names no Repository"),
        (
            '[project.urls]\nRepository = "https://x.example"\n',
            "- alert: A\n- alert: B\n  runbook_url: x\n",
            "alert A has no",
        ),
        ('[project.urls]\nRepository = "https://x.example"\n', "- alert: B\n", "alert B has no annotation runbook_url"),
    ],
)
def test_an_alert_without_a_link_is_an_error(metadata: str, rules: str, words: str) -> None:
    with pytest.raises(ShippedFilesError, match=words):
        files.with_links(rules, files.repository_of(metadata))
