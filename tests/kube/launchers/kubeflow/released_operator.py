"""Kubeflow's Spark operator of a published release: its own webhook rules and its own way to spark-submit.

A program is built once inside of its Go module, from its own source, whose hash is pinned (two CPU minutes), and kept
beside the programs of the control plane. A next release is the version in gomodules/kubeflow-spark-operator.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from compaction.local.cache import cache_directory
from compaction.local.processes.locks import exclusive
from compaction.local.programs import gobuild
from compaction.local.programs.binaries import cache_lock, install_set

MODULE: Final = "github.com/kubeflow/spark-operator/v2"
WRAPPER: Final = Path(__file__).with_name("gomodules") / "kubeflow-spark-operator"
PACKAGE: Final = "cmd/compaction-test"
CONTROLLER: Final = "internal/controller/sparkapplication"
PARTS: Final = (
    "api/v1beta2",
    "pkg",
    f"{CONTROLLER}/submission.go",
    "internal/webhook/resourcequota.go",
    "internal/webhook/sparkapplication_validator.go",
    "internal/webhook/sparkconf_validator.go",
)
"""What the program needs: without the rest of the operator half as much is compiled."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the operator said. `refused`: in its own words, empty when it took the application."""

    output: str
    refused: str


@cache
def program() -> Path:
    """The program of the pinned release, built if need be."""
    required = re.search(rf"{re.escape(MODULE)} (\S+)", (WRAPPER / "go.mod").read_text())
    assert required is not None
    module, kept = f"{MODULE}@{required[1]}", cache_directory(os.environ)
    place = kept / "control-plane" / f"kubeflow-spark-operator-{required[1]}-{_digest()}"
    if place.exists():
        return place / Path(PACKAGE).name
    with exclusive(cache_lock(kept), what="building a program of Kubeflow's Spark operator", report=print):
        if not place.exists():
            install_set(
                place,
                lambda made: gobuild.build_inside(
                    made, module, package=PACKAGE, parts=PARTS, wrapper=WRAPPER, cache=kept, report=print
                ),
            )
    return place / Path(PACKAGE).name


def _digest() -> str:
    """Eight hex digits of what the program is made from, besides the release."""
    ours = hashlib.sha256(" ".join(PARTS).encode())
    for path in sorted(one for one in WRAPPER.rglob("*") if one.is_file()):
        ours.update(path.relative_to(WRAPPER).as_posix().encode() + b"\0" + path.read_bytes())
    return ours.hexdigest()[:8]


def rules() -> dict[str, str]:
    """Keys of sparkConf that its webhook refuses -> its reason."""
    found: dict[str, str] = json.loads(_run("rules", {}, {}).output)
    return found


def validate(application: Mapping[str, Any]) -> str:
    """What its webhook says of an application; empty when it takes it."""
    return _run("validate", application, {}).refused


def submit(application: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Have it submit an application with the spark-submit of `SPARK_HOME`; what it says, empty when that worked."""
    return _run("submit", application, environment).refused


def _run(mode: str, application: Mapping[str, Any], environment: Mapping[str, str]) -> Answer:
    answer = subprocess.run(
        [str(program()), mode],
        input=json.dumps(application),
        env=dict(os.environ) | dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode in (0, 1), answer.stderr
    return Answer(answer.stdout, answer.stderr.strip() if answer.returncode else "")


if __name__ == "__main__":
    program()
