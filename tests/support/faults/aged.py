"""Objects that look old to their store, and stores that die at one call: for tests of what is deleted by age."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import obstore
import pytest

from compaction.storage.objects.store import ObjectStorage
from support.depth import each_call
from support.faults.index_faults import Death, When

DAY = 86_400

Aging = Callable[[ObjectStorage, str, float], None]
"""`age(objects, path, seconds)`: the object was last written so long ago."""
CALLS = ("get", "head", "put", "delete", "list")


@pytest.fixture
def age(request: pytest.FixtureRequest) -> Aging:
    """Both servers keep their objects as files."""

    def set_age(objects: ObjectStorage, path: str, seconds: float) -> None:
        file = root_of(request, objects) / path
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))

    return set_age


def root_of(request: pytest.FixtureRequest, objects: ObjectStorage) -> Path:
    """The folder in which the objects are files."""
    parts = urlsplit(objects.url)
    if parts.scheme != "s3":
        return Path(objects.url)
    buckets: Path = request.getfixturevalue("s3").gateway.buckets
    return buckets / parts.netloc / parts.path.strip("/")


@dataclass
class DyingStore:
    """The process dies at call number `at` (0-based) of any object store; without `at` calls are only counted.

    A deletion of many that dies in the middle has deleted the first half of them.
    """

    at: int | None = None
    when: When = When.BEFORE
    calls: list[str] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> DyingStore:
        for name in CALLS:
            self._stack.enter_context(patch.object(obstore, name, self._wrapped(name, getattr(obstore, name))))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*arguments: Any, **options: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if number == self.at and self.when is When.BEFORE:
                if name == "delete" and not isinstance(arguments[1], str):
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise Death
            answer = call(*arguments, **options)
            if number == self.at:
                raise Death
            return answer

        return dying


def deaths(calls: list[str]) -> list[tuple[int, When]]:
    """Before each call, and after each that writes."""
    return [
        (number, when)
        for number in each_call(calls)
        for when in (When.BEFORE, When.AFTER)
        if when is When.BEFORE or calls[number] in {"put", "delete"}
    ]
