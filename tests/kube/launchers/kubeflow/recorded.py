"""What Kubeflow's release answered when it was asked: `answers.json`, so that a short run needs no program of it.

A question is a mode of the program and an application; the file has the hash of it. What differs from one submission to
the next is replaced in both: the application's uid (`UID`) and the address of the API server (`ADDRESS`), and nothing
else. spark-submit's own words are `WORDS` in an answer. The order in which Go walks a map is not part of an answer:
settings of the same name keep theirs, all others are sorted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

ANSWERS: Final = Path(__file__).with_name("answers.json")
UID: Final = "5b1f0c3e-0000-4000-8000-000000000000"
HOST, PORT = "kubernetes.recorded.invalid", "6443"
ADDRESS: Final = f"{HOST}:{PORT}"
WORDS: Final = "what spark-submit says on standard error"
RECORD: Final = "make kubeflow-answers"


@dataclass(frozen=True, slots=True)
class Submission:
    """What is one submission's own. `address`: of the API server, as HOST:PORT."""

    uid: str = UID
    address: str = ADDRESS

    @property
    def id(self) -> str:
        return f"test-{self.uid}"

    @property
    def directory(self) -> Path:
        """Where the operator writes the templates of its pods."""
        return Path("/tmp/spark") / self.id

    def out_of(self, text: str) -> str:
        """With the values of the file in the place of this submission's."""
        return text.replace(self.uid, UID).replace(self.address, ADDRESS)

    def into(self, text: str) -> str:
        """With this submission's values in the place of those of the file."""
        return text.replace(UID, self.uid).replace(ADDRESS, self.address)


@dataclass(frozen=True, slots=True)
class Question:
    """`text`: the application as canonical JSON, with the values of the file."""

    mode: str
    text: str = "{}"

    @classmethod
    def about(cls, mode: str, application: Mapping[str, Any], submission: Submission | None = None) -> Self:
        """`submission`: an application that is submitted has its id in the status."""
        if submission is None:
            return cls(mode, _canonical(application))
        return cls(mode, submission.out_of(_canonical({**application, "status": {"submissionID": submission.id}})))

    @property
    def key(self) -> str:
        return f"{self.mode} {hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the operator said. `refused`: in its own words, empty when it took the application. When it submits one:
    `arguments` of spark-submit, the `files` that these name, and what it says when spark-submit fails (`failed`).
    """

    output: str = ""
    refused: str = ""
    arguments: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    failed: str = ""

    def as_json(self) -> dict[str, Any]:
        """Without what is empty; files by lines, so that a change of one is a change of a line."""
        document: dict[str, Any] = asdict(self)
        document["files"] = {path: text.split("\n") for path, text in self.files.items()}
        return {name: value for name, value in document.items() if value}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        files = {path: "\n".join(lines) for path, lines in document.get("files", {}).items()}
        fields = {**document, "arguments": tuple(document.get("arguments", ())), "files": files}
        return cls(**fields)


class NotRecordedError(AssertionError):
    """The file has no answer, or is of another program: a test that asks fails."""


@dataclass(frozen=True, slots=True)
class Recording:
    """`release` and `program` (the digest of what it is made from) say who answered."""

    release: str
    program: str
    answers: Mapping[str, Answer]

    @classmethod
    def read(cls, *, release: str, program: str, path: Path = ANSWERS) -> Self:
        """NotRecordedError: it is of another release, or of another program."""
        document = json.loads(path.read_text())
        found = document["release"], document["program"]
        if found != (release, program):
            raise NotRecordedError(
                f"{path.name} has the answers of Kubeflow's operator {' '.join(found)}, and the tests ask "
                f"{release} {program} (version in go.mod, digest of the program): run `{RECORD}` and read what differs"
            )
        return cls(*found, {key: Answer.from_json(item) for key, item in document["answers"].items()})

    def answer(self, question: Question) -> Answer:
        """NotRecordedError: it was never asked this."""
        if question.key not in self.answers:
            raise NotRecordedError(
                f"{ANSWERS.name} has no answer of Kubeflow's operator {self.release} to `{question.key}`: "
                f"{question.text}. Our application has changed, or the question is new: name it in `questions.asked`, "
                f"run `{RECORD}`, and read what differs"
            )
        return self.answers[question.key]

    def write(self, path: Path = ANSWERS) -> None:
        answers = {key: self.answers[key].as_json() for key in sorted(self.answers)}
        document = {"release": self.release, "program": self.program, "answers": answers}
        path.write_text(json.dumps(document, indent=1) + "\n")


def in_order(arguments: Iterable[str]) -> tuple[str, ...]:
    """The arguments of spark-submit with its settings sorted by name; of two with one name the later one counts, so
    these stay as they are. What follows the program's file is the program's.
    """
    given = list(arguments)
    places, at = [], 0
    while at + 1 < len(given) and given[at].startswith("--"):
        if given[at] == "--conf":
            places.append(at + 1)
        at += 2
    settings = sorted((given[place] for place in places), key=lambda item: item.partition("=")[0])
    for place, setting in zip(places, settings, strict=True):
        given[place] = setting
    return tuple(given)


def _canonical(application: Mapping[str, Any]) -> str:
    return json.dumps(application, sort_keys=True, separators=(",", ":"))
