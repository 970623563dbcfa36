"""The policy's file of a watch: what counts as a change, and what does not."""

from __future__ import annotations

import io
from pathlib import Path

import click
import pytest
import yaml

from compaction.api.names import ANNOTATION_APPROVE
from compaction.cli.local.policy_file import PolicyFile
from support.cluster.manifests import policy_object


def write(path: Path, **spec: object) -> None:
    """Another file under the name, as editors make it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(policy_object(**spec)))
    fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "policy.yaml")
    return tmp_path / "policy.yaml"


def opened(path: Path, **options: str | None) -> PolicyFile:
    with path.open() as source:
        return PolicyFile(source, **({"wanted": None, "approved": None} | options))


def test_only_a_policy_that_says_something_else_is_a_change(path: Path) -> None:
    file = opened(path)
    assert file.reread() is None
    write(path)
    assert file.reread() is None, "the same words in another file"
    write(path, suspend=True)
    changed = file.reread()
    assert changed is not None
    assert changed.spec.suspend
    assert file.reread() is None


def test_a_broken_or_absent_file_leaves_the_policy_as_it_was(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = opened(path)
    path.write_text("spec: [")
    assert file.reread() is None
    assert "not valid YAML" in (told := capsys.readouterr().err)
    assert told.endswith("the policy stays as it was\n")
    assert file.reread() is None
    assert capsys.readouterr().err == "", "told once"
    path.unlink()
    assert file.reread() is None
    write(path, suspend=True)
    assert file.reread() is not None


def test_the_hash_on_the_command_line_gives_way_to_the_one_in_the_file(path: Path) -> None:
    file = opened(path, approved="4d5e")
    assert file.policy.metadata.annotations == {ANNOTATION_APPROVE: "4d5e"}
    document = policy_object()
    document["metadata"]["annotations"] = {ANNOTATION_APPROVE: "9999"}
    path.write_text(yaml.safe_dump(document))
    changed = file.reread()
    assert changed is not None
    assert changed.metadata.annotations == {ANNOTATION_APPROVE: "9999"}


def test_standard_input_is_read_once(path: Path) -> None:
    source = io.StringIO(path.read_text())
    source.name = "<stdin>"
    assert PolicyFile(source, wanted=None, approved=None).reread() is None


def test_a_wrong_choice_is_wrong_usage(path: Path) -> None:
    with pytest.raises(click.UsageError, match="no policy other; there are logs"):
        opened(path, wanted="other")
