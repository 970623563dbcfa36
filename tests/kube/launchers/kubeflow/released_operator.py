"""Kubeflow's Spark operator of a published release: its own webhook rules and its own way to spark-submit.

A short run has its answers from a file (`recorded`). A deep run asks the program itself, and it must say the same. The
program is built once inside of its Go module, from its own source, whose hash is pinned (two CPU minutes), and kept
beside the programs of the control plane. A next release is the version in gomodules/kubeflow-spark-operator, and then
`make kubeflow-answers`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from compaction.local.programs import gobuild
from kube.launchers.kubeflow.recorded import WORDS, Answer, Question, Recording, Submission, in_order
from support.pinned_modules import PinnedModule, kept, made_once
from support.timing import DEPTH, Depth

MODULE: Final = PinnedModule(
    "github.com/kubeflow/spark-operator/v2", Path(__file__).with_name("gomodules") / "kubeflow-spark-operator"
)
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
RECORDER: Final = f"""#!/bin/sh
printf '%s\\0' "$@" >"$ARGUMENTS"
test -z "$FAILS" || {{ echo '{WORDS}' >&2; exit 1; }}
"""
"""In the place of spark-submit: writes its arguments down, and fails when asked to."""
ALREADY_THERE: Final = "code=409"
"""With this in the words of spark-submit the operator has words of its own."""


def digest() -> str:
    """Eight hex digits of what the program is made from, besides the release."""
    ours = hashlib.sha256(" ".join(PARTS).encode())
    for path in sorted(item for item in MODULE.wrapper.rglob("*") if item.is_file()):
        ours.update(path.relative_to(MODULE.wrapper).as_posix().encode() + b"\0" + path.read_bytes())
    return ours.hexdigest()[:8]


@cache
def program() -> Path:
    """The program of the pinned release, built if need be."""

    def make(made: Path, cache: Path) -> None:
        gobuild.build_inside(
            made, str(MODULE), package=PACKAGE, parts=PARTS, wrapper=MODULE.wrapper, cache=cache, report=print
        )

    place = kept(f"kubeflow-spark-operator-{MODULE.version}-{digest()}")
    what = "building a program of Kubeflow's Spark operator"
    return made_once(place, make, what=what, report=print) / Path(PACKAGE).name


@cache
def recording() -> Recording:
    """The answers of the file. NotRecordedError: they are not of this release."""
    return Recording.read(release=MODULE.version, program=digest())


def rules() -> dict[str, str]:
    """Keys of sparkConf that its webhook refuses -> its reason."""
    found: dict[str, str] = json.loads(_answer(Question("rules")).output)
    return found


def validate(application: Mapping[str, Any]) -> str:
    """What its webhook says of an application; empty when it takes it."""
    return _answer(Question.about("validate", application)).refused


def submit(application: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Have it submit an application with the spark-submit of `SPARK_HOME`; what it says, empty when that worked."""
    address = f"{environment['KUBERNETES_SERVICE_HOST']}:{environment['KUBERNETES_SERVICE_PORT']}"
    submission = Submission(application["metadata"]["uid"], address)
    question = Question.about("submit", application, submission)
    recorded = recording().answer(question)
    try:
        if DEPTH is Depth.DEEP:
            return _run("submit", submission.into(question.text), environment).refused
        return replay(recorded, submission, environment)
    finally:
        shutil.rmtree(submission.directory, ignore_errors=True)


def replay(answer: Answer, submission: Submission, environment: Mapping[str, str]) -> str:
    """What `submit` of the program does and says that gave this answer."""
    if answer.refused:
        return answer.refused
    for path, text in answer.files.items():
        file = Path(submission.into(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(submission.into(text))
    spark_submit = str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit")
    ended = subprocess.run(
        [spark_submit, *map(submission.into, answer.arguments)],
        env=dict(os.environ) | dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode == 0:
        return ""
    assert ended.stderr, f"spark-submit ended with {ended.returncode}: what the operator says then was not recorded"
    assert ALREADY_THERE not in ended.stderr, f"what the operator says of this was not recorded: {ended.stderr}"
    return answer.failed.replace(WORDS, ended.stderr).strip()


def ask(question: Question, submission: Submission | None = None) -> Answer:
    """What the program itself says, with the values of the file in the place of `submission`'s."""
    if question.mode != "submit":
        return _run(question.mode, question.text, {})
    own = Submission(str(uuid.uuid4())) if submission is None else submission
    host, _, port = own.address.rpartition(":")
    with tempfile.TemporaryDirectory(prefix="compaction-submit-") as temporary:
        recorder, arguments = Path(temporary) / "bin" / "spark-submit", Path(temporary) / "arguments"
        recorder.parent.mkdir()
        recorder.write_text(RECORDER)
        recorder.chmod(0o755)
        environment = {"SPARK_HOME": temporary, "ARGUMENTS": str(arguments), "FAILS": ""}
        environment |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        try:
            said = _run("submit", own.into(question.text), environment)
            if not arguments.exists():
                return Answer(refused=own.out_of(said.refused))
            assert said == Answer(), said
            given = arguments.read_text().removesuffix("\0").split("\0")
            files = {own.out_of(str(path)): own.out_of(path.read_text()) for path in sorted(own.directory.iterdir())}
            failed = _run("submit", own.into(question.text), environment | {"FAILS": "yes"}).refused
        finally:
            shutil.rmtree(own.directory, ignore_errors=True)
    return Answer(arguments=in_order(map(own.out_of, given)), files=files, failed=own.out_of(failed))


def _answer(question: Question) -> Answer:
    answer = recording().answer(question)
    if DEPTH is Depth.DEEP:
        said = ask(question)
        assert said == answer, f"Kubeflow's operator {MODULE.version} says otherwise than in the file to {question.key}"
    return answer


def _run(mode: str, application: str, environment: Mapping[str, str]) -> Answer:
    answer = subprocess.run(
        [str(program()), mode],
        input=application,
        env=dict(os.environ) | dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode in (0, 1), answer.stderr
    return Answer(answer.stdout, answer.stderr.strip() if answer.returncode else "")


def main(arguments: list[str]) -> None:
    """Build the program; `--record` has it answer all that the tests ask, and writes the file."""
    program()
    if arguments == ["--record"]:
        from kube.launchers.kubeflow.questions import asked

        answers = {question.key: ask(question) for question in asked().values()}
        Recording(MODULE.version, digest(), answers).write()
        print(f"recorded {len(answers)} answers of Kubeflow's operator {MODULE.version}")


if __name__ == "__main__":
    main(sys.argv[1:])
