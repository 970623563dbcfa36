"""Values in the specs of several kinds of store: paths and globs, times and sizes, names of Secrets."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import StringConstraints

from compaction.api.base import ApiModel, Checked, Rule
from compaction.api.text.quantities import DURATION_PATTERN
from compaction.errors import CONFIG_MAP

# Rules for paths in the resources: directories where the operator and its workers run, and globs below them.


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


# Values that the specs of several kinds of store have: times and sizes that are not 0, names of Secrets, and the
# certificates of authorities.

LASTING: Final = Rule(
    cel=f"!self.matches('{DURATION_PATTERN}') || self.matches('[1-9]')",
    message="must be longer than 0s, such as 36s",
    holds=lambda duration: duration > 0,
)
SOME_BYTES: Final = Rule(
    cel="type(self) == int ? self > 0 : !self.matches('^[0.]+[a-zA-Z]*$')",
    message="must be more than 0, such as 512Mi",
    holds=lambda quantity: quantity > 0,
)

_SECRET: Final = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
SECRET_NAME: Final = Rule(
    cel=f"self.matches('{_SECRET}')",
    message="must be the name of a Secret: lower case letters, digits, '-' and '.'",
    holds=lambda name: re.fullmatch(_SECRET, name) is not None,
)
_KEY: Final = "^([-_a-zA-Z0-9][-._a-zA-Z0-9]*)$"
SECRET_KEY: Final = Rule(
    cel=f"self.matches('{_KEY}')",
    message="must be a key of a Secret: letters, digits, '-', '_' and '.', not beginning with '.'",
    holds=lambda key: re.fullmatch(_KEY, key) is not None,
)
"""Secrets are read from files of these names too (workers): neither may leave its directory."""

SecretName = Annotated[str, StringConstraints(min_length=1, max_length=253), Checked(SECRET_NAME)]
SecretKey = Annotated[str, StringConstraints(min_length=1, max_length=253), Checked(SECRET_KEY)]


class CaBundle(ApiModel):
    """Certificates of the authorities that have signed those of the servers, in PEM: one Secret or one ConfigMap."""

    RULES = (
        Rule(
            cel="has(self.secretName) != has(self.configMapName)",
            message="set secretName or configMapName, one of both",
            holds=lambda bundle: (bundle.secret_name is None) != (bundle.config_map_name is None),
        ),
    )

    secret_name: SecretName | None = None
    """Name of a Secret in the policy's namespace."""
    config_map_name: SecretName | None = None
    """Name of a ConfigMap in the policy's namespace, such as one that trust-manager writes."""
    key: SecretKey = "ca.crt"
    """Key whose value is the certificates, one after another."""

    @property
    def source(self) -> str:
        """Where Secrets are read: the name of the Secret, or of the ConfigMap behind `CONFIG_MAP`."""
        return self.secret_name or f"{CONFIG_MAP}{self.config_map_name}"
