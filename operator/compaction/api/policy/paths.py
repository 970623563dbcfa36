"""Rules for paths in the resources: directories where the operator and its workers run, and globs below them."""

import re
from typing import Final

from compaction.api.rules import Rule


def _no_parent_step(message: str) -> Rule:
    return Rule(
        cel="!self.matches('(^|/)[.][.](/|$)')", message=message, holds=lambda path: ".." not in path.split("/")
    )


def _relative_to(what: str) -> Rule:
    return Rule(
        cel="!self.startsWith('/')",
        message=f"must be relative to {what}: leave out the leading '/'",
        holds=lambda path: not path.startswith("/"),
    )


_CLOSED_SETS: Final = r"^([^\x5b]|\x5b[^\x5d/]+\x5d)*$"
"""Every [ (5b) begins a set that ends before the next / : the same text is a regular expression for CEL and Python."""
NO_NUL: Final = Rule(
    cel="!self.contains('\\u0000')",
    message="must not contain a NUL character: no path can",
    holds=lambda path: "\0" not in path,
)
ABSOLUTE_PATH: Final = (
    NO_NUL,
    Rule(
        cel="self.startsWith('/')",
        message="must be an absolute path, such as /data/ra",
        holds=lambda path: path.startswith("/"),
    ),
    _no_parent_step("must not contain '..': write the path it leads to"),
)
NOT_THE_FILE_SYSTEM: Final = Rule(
    cel="self.matches('[^/.]')",
    message="must name a directory below /: the whole file system is not a store",
    holds=lambda path: any(character not in "/." for character in path),
)
OF_THE_KERNEL: Final = "[/.]*/(proc|sys|dev)(/|$)"
_IN_MEMORY: Final = "[/.]*/dev[/.]*/shm(/|$)"
NOT_OF_THE_KERNEL: Final = Rule(
    cel=f"!self.matches('^(file://)?{OF_THE_KERNEL}') || self.matches('^(file://)?{_IN_MEMORY}')",
    message="must not lead through /proc, /sys or /dev, where the same directory has other names: write its own path",
    holds=lambda path: (
        re.match(OF_THE_KERNEL, path.removeprefix("file://")) is None
        or re.match(_IN_MEMORY, path.removeprefix("file://")) is not None
    ),
)
RELATIVE_GLOB: Final = (
    NO_NUL,
    _relative_to("root"),
    _no_parent_step("must not contain '..': only directories below root are compacted"),
    Rule(
        cel="!self.contains('***')",
        message="must not contain '***': write ** for any depth, * within one name",
        holds=lambda glob: "***" not in glob,
    ),
    Rule(
        cel=f"self.matches('{_CLOSED_SETS}')",
        message="must close every '[' with a ']' in the same name, as in log-[0-9]: write [[] for the character itself",
        holds=lambda glob: re.fullmatch(_CLOSED_SETS, glob) is not None,
    ),
)
RELATIVE_DIRECTORY: Final = (
    NO_NUL,
    _relative_to("the volume"),
    _no_parent_step("must not contain '..'"),
)
