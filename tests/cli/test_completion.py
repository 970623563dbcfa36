"""Completion, as a shell and as kubectl ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from compaction.cli.main import COMMANDS, FILES, NO_FILES, called_as, completions, main
from support.cluster.by_kubectl import Cluster
from support.cluster.catalog_manifests import catalog_object
from support.cluster.manifests import job_object, policy_object


def test_kubectl_is_told_commands_options_and_their_values() -> None:
    assert completions([]) == [*(f"{name}\t{COMMANDS[name][1]}" for name in COMMANDS), NO_FILES]
    assert [line.split("\t")[0] for line in completions(["qua"])] == ["quarantine", NO_FILES]
    assert [line.split("\t")[0] for line in completions(["quarantine", "--r"])] == ["--release", NO_FILES]
    assert completions(["status", "-o", ""]) == ["table", "wide", "json", "yaml", NO_FILES]
    assert any(line.startswith("--all-namespaces\t") for line in completions(["status", "--a"]))
    assert completions(["status", "--kubeconfig", ""]) == [FILES]


@pytest.mark.apiserver
def test_names_of_policies_jobs_and_catalogs_are_completed(control_plane: Any, namespace: str) -> None:
    cluster = Cluster(control_plane, namespace)
    cluster.apply(policy_object("logs"))
    cluster.apply(job_object("logs-1", policy="logs"))
    cluster.apply(catalog_object("orders"))
    where = ["--kubeconfig", str(control_plane.kubeconfig), "-n", namespace]
    assert completions(["status", *where, ""]) == ["logs", "ccat/orders", NO_FILES]
    assert completions([*where, "status", "l"]) == ["logs", NO_FILES], "the flags may stand before the verb"
    assert completions([*where, "why", ""]) == ["logs", "logs-1", "ccat/orders", NO_FILES]
    assert completions([*where, "retry", "logs-"]) == ["logs-1", NO_FILES]
    assert completions([*where, "quarantine", ""]) == ["logs", NO_FILES]
    assert namespace in completions([*where[:2], "status", "-n", ""])
    assert completions(["--kubeconfig", "/nowhere", "status", ""]) == [NO_FILES], "no cluster is no name, and no error"


def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stauts"]) == 2
    assert "Did you mean 'status'?" in capsys.readouterr().err
    assert main(["segments", "inspekt", "."]) == 2
    assert "Did you mean 'inspect'?" in capsys.readouterr().err


def test_flags_of_a_cluster_before_a_command_that_knows_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "storage", "segments", "inspect", "."]) == 2
    assert "segments takes no --namespace before its name" in capsys.readouterr().err
    assert main(["-A", "why", "x"]) == 2
    assert "why reads one namespace: give -n, not -A" in capsys.readouterr().err


def test_a_shell_is_told_the_same() -> None:
    environment = os.environ | {"_COMPACTOR_COMPLETE": "bash_complete", "COMP_WORDS": "compactor wh", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "compaction.cli.main"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert answer.stdout == "plain,why\n"


def test_the_program_goes_by_the_name_it_was_called_by() -> None:
    assert called_as("/usr/bin/kubectl-compaction") == "kubectl compaction"
    assert called_as("/usr/bin/compactor") == called_as("-m") == "compactor"
