"""What the webhook of Kubeflow's published release says about our applications, by its own code; and that the recorded
answers are those of this release, to what the tests ask and nothing else.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from compaction.kube.launchers.kubeflow import WRITTEN_CONF
from kube.launchers.kubeflow import questions, released_operator
from kube.launchers.kubeflow.recorded import (
    UID,
    WORDS,
    Answer,
    NotRecordedError,
    Question,
    Recording,
    Submission,
    in_order,
)
from support.depth import at_depth

OTHERS = Submission(str(uuid.uuid4()), "10.1.2.3:8443")


@pytest.mark.parametrize("variant", questions.VARIANTS)
def test_its_webhook_takes_our_applications(variant: str) -> None:
    assert released_operator.validate(questions.variant(variant)) == ""


def test_we_know_every_key_that_it_refuses() -> None:
    assert set(WRITTEN_CONF) == set(released_operator.rules())


@pytest.mark.parametrize("key", sorted(WRITTEN_CONF))
def test_it_refuses_the_key_whatever_its_value(key: str) -> None:
    assert f'sparkConf key "{key}" is not allowed' in released_operator.validate(questions.with_setting(key))


def test_it_refuses_another_namespace_and_takes_the_same() -> None:
    assert "must equal the application namespace" in released_operator.validate(questions.in_another_namespace())


@pytest.mark.parametrize("policy", questions.POLICIES)
def test_names_of_workers_satisfy_it(policy: str) -> None:
    """Services are named after applications: their names are stricter than those of other objects."""
    assert released_operator.validate(questions.of_policy(policy)) == ""


def test_the_file_has_what_the_tests_ask_and_a_deep_run_hears_the_same_from_the_program() -> None:
    """Of a submission with a uid and an API server that are not those of the file."""
    asked, recorded = questions.asked(), released_operator.recording()
    assert {question.key for question in asked.values()} == set(recorded.answers)
    for name, question in at_depth(short={}, deep=asked).items():
        assert released_operator.ask(question, OTHERS) == recorded.answer(question), name


def test_answers_of_another_release_or_program_are_none() -> None:
    release, program = released_operator.MODULE.version, released_operator.digest()
    assert Recording.read(release=release, program=program).answers
    for other in (("v0.0.1", program), (release, "00000000")):
        with pytest.raises(NotRecordedError, match="make kubeflow-answers"):
            Recording.read(release=other[0], program=other[1])


def test_what_was_never_asked_fails_and_says_how_to_record_it() -> None:
    application = questions.variant("plain")
    application["spec"]["image"] = "another:1"
    with pytest.raises(
        NotRecordedError, match=r"no answer .* to `validate [0-9a-f]{16}`: .*another:1.*`make kubeflow-answers`"
    ):
        released_operator.validate(application)


def test_what_is_recorded_is_read_as_it_was_written(tmp_path: Path) -> None:
    answer = Answer(arguments=("--name", "a"), files={"/tmp/spark/a.yaml": "a: 1\nb: 2\n"}, failed="failed")
    written = Recording("v1", "ab", {"submit 1": answer, "validate 2": Answer(), "validate 3": Answer(refused="no")})
    written.write(tmp_path / "answers.json")
    assert Recording.read(release="v1", program="ab", path=tmp_path / "answers.json") == written


def test_a_question_does_not_depend_on_the_uid_and_the_order_of_fields() -> None:
    first, second = (questions.submitted("refused", uid) for uid in (OTHERS.uid, UID))
    turned = dict(reversed(first.items()))
    about = Question.about("submit", turned, OTHERS)
    assert about == Question.about("submit", second, Submission())
    assert about.key != Question.about("validate", second).key


def test_settings_are_sorted_but_the_last_of_one_name_still_counts() -> None:
    given = "--master m --conf b=2 --conf a=2 --name n --conf a=1 local:///x --conf 0"
    wanted = "--master m --conf a=2 --conf a=1 --name n --conf b=2 local:///x --conf 0"
    assert in_order(given.split()) == tuple(wanted.split())


def test_a_recorded_submission_runs_spark_submit_with_the_values_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    seen = tmp_path / "bin" / "spark-submit"
    seen.write_text(
        '#!/bin/sh\necho "$@" >"$SEEN"\ncat "$3" >>"$SEEN"\ntest -z "$FAILS" || { echo "no: $FAILS" >&2; exit 1; }\n'
    )
    seen.chmod(0o755)
    inside = Submission().directory / "driver.yaml"
    answer = Answer(
        arguments=("--master", f"k8s://https://{Submission().address}", str(inside)),
        files={str(inside): f"uid: {UID}\n"},
        failed=f"failed to run: {WORDS}",
    )
    environment = {"SPARK_HOME": str(tmp_path), "SEEN": str(tmp_path / "seen"), "FAILS": ""}
    own = OTHERS.directory / "driver.yaml"
    try:
        assert released_operator.replay(answer, OTHERS, environment) == ""
        wanted = f"--master k8s://https://10.1.2.3:8443 {own}\nuid: {OTHERS.uid}\n"
        assert (tmp_path / "seen").read_text() == wanted
        said = released_operator.replay(answer, OTHERS, environment | {"FAILS": "forbidden"})
        assert said == "failed to run: no: forbidden"
        with pytest.raises(AssertionError, match="not recorded: no: code=409"):
            released_operator.replay(answer, OTHERS, environment | {"FAILS": "code=409"})
    finally:
        own.unlink()
        own.parent.rmdir()
