"""DDL commands in YAML: the members of each are those of a recorded history (docs/design/catalogs.md#histories)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from compaction.catalogs.commands.command import Command
from compaction.catalogs.errors import CatalogDdlError, CatalogValidationError
from compaction.catalogs.replay.parsing import command_of

LARGEST = 16 << 20
"""Bytes of a file."""


class _Members(dict[str, Any]):
    """A mapping that knows which of its members were read: what is left over was misspelt, or has no effect."""

    def __init__(self, given: dict[Any, Any]) -> None:
        super().__init__({name: _noting(value) for name, value in given.items()})
        self.read: set[object] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def unread(self) -> Iterator[str]:
        """Names of members that nothing read, of what is inside too."""
        for name, value in self.items():
            if name not in self.read:
                yield str(name)
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, _Members):
                    yield from (f"{name}.{one}" for one in inner.unread())


def batches_of(file: Path) -> tuple[tuple[Command, ...], ...]:
    """The commands of a file, those that become one version together.

    Raises CatalogDdlError, which names the file, the step and the member, and OSError.
    """
    with file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise CatalogDdlError(str(file), "", f"larger than {LARGEST >> 20} MiB; split it")
    try:
        given = yaml.load(data, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise CatalogDdlError(str(file), "", f"not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(given, list):
        raise CatalogDdlError(str(file), "", "not a list; write each command as an item that begins with `- type:`")
    return tuple(
        tuple(_command(file, f"step {step}", one) for one in (item if isinstance(item, list) else [item]))
        for step, item in enumerate(given, start=1)
    )


def _command(file: Path, step: str, given: object) -> Command:
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        raise CatalogDdlError(str(file), step, "not a command; write a mapping with `type`, such as CREATE_TABLE")
    shown = _Members(given)
    named = f"{step}, {given['type'][:40]}"
    try:
        command = command_of(shown)
    except CatalogValidationError as error:
        raise CatalogDdlError(str(file), named, str(error)) from error
    except KeyError as error:
        name = str(error.args[0])[:80]
        reason = (
            "no such command; docs/catalogs.md lists them" if name == given["type"] else f"{name} is missing or unknown"
        )
        raise CatalogDdlError(str(file), named, reason) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CatalogDdlError(str(file), named, f"a member has a value of another type ({error})"[:300]) from error
    unread = sorted(shown.unread())
    if unread:
        raise CatalogDdlError(str(file), named, f"{', '.join(unread)[:200]}: no such member of this command")
    return command


def _noting(value: Any) -> Any:
    if isinstance(value, dict):
        return _Members(value)
    return (
        [_noting(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value
    )
