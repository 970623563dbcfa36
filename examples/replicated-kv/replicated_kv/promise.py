"""Which leader a member follows: one for each term, and never again one of a lower term. Durable.

With this, two leaders that a person has chosen by mistake cannot both have a majority: each member follows the one of
the higher term, and in one term only the one that it heard of first.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replicated_kv.errors import TermError

FILE: Final = "promise.json"


@dataclass(frozen=True, slots=True)
class Promise:
    """Term 0 and no leader: none yet."""

    term: int = 0
    leader: str = ""

    def check(self, term: int, leader: str) -> bool:
        """Whether it is a new promise. TermError: it breaks this one."""
        if term < self.term or (term == self.term and leader != self.leader):
            raise TermError(
                f"term {term} of {leader} is refused: this member follows {self.leader} in term {self.term}; "
                f"a new leader needs a higher term"
            )
        return term > self.term


class PromiseFile:
    """The promise of the member whose data is in `directory`."""

    def __init__(self, directory: Path) -> None:
        """OSError, ValueError and KeyError: a file that is there cannot be read."""
        self._path = directory / FILE
        self.promise = Promise()
        if self._path.exists():
            found = json.loads(self._path.read_text())
            self.promise = Promise(int(found["term"]), str(found["leader"]))

    def follow(self, term: int, leader: str) -> None:
        """Promise it; durable on return. TermError: an earlier promise is against it. OSError."""
        if not self.promise.check(term, leader):
            return
        temporary = self._path.with_suffix(".partial")
        with temporary.open("w") as file:
            json.dump({"term": term, "leader": leader}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self.promise = Promise(term, leader)
