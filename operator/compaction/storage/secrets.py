"""Secrets by name: where the credentials of a store and the URL of its index come from, in every deployment.

A Secret is a name and keys with texts, as Kubernetes has them. What reads one gets values; what travels, is logged or
is stored has names only. So a Spark task is given `TaskSecret`, and opens the files where it runs. ConfigMaps, which
may hold the certificates of authorities, are read alike, under names that begin with `CONFIG_MAP`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from compaction.api.enums import PolicyReason
from compaction.api.policy.values import CaBundle
from compaction.errors import CONFIG_MAP
from compaction.storage.errors import SecretError, SecretForbiddenError, SecretMissingError, SecretsNotFoundError

MOUNTED_AT: Final = "/var/run/compaction/secrets"
"""Where pods of workers have the Secrets of their policy, a directory for each."""
LARGEST: Final = 1 << 20
"""Bytes of a Secret at most, as in Kubernetes."""
ROOT_CERTIFICATE: Final = "root_certificate"
"""The option of object stores for certificates of authorities, in PEM."""
_NAME: Final = re.compile(
    rf"({CONFIG_MAP})?"
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_LONGEST: Final = 253
_LOOKS: Final = 100
"""A version is replaced while it is read perhaps once; never so often."""
_NOT_TEXT: Final = "its value is not UTF-8 text; write it again"


class Secrets(Protocol):
    """Implemented for mounted files, for values at hand (both below), and for the Kubernetes API
    (kube/client/secrets.py).
    """

    def read(self, name: str) -> Mapping[str, str]:
        """All keys of a Secret with their texts, of one version of it. Raises SecretError, which has no value."""
        ...


@dataclass(frozen=True, slots=True)
class DirectorySecrets:
    """Secrets as Kubernetes mounts them: `<directory>/<name>/<key>`. Plain data, read again at each call."""

    directory: str = MOUNTED_AT

    def read(self, name: str) -> Mapping[str, str]:
        """See `Secrets`. Nothing outside of the Secret's own directory is read, whatever links say."""
        folder = Path(self.directory) / check_name(name)
        for _ in range(_LOOKS):
            try:
                found = self._read(name, folder)
            except PermissionError as error:
                raise SecretForbiddenError(name, "", f"{folder} cannot be read: {error.strerror}") from None
            except OSError as error:
                if not folder.exists():
                    raise SecretsNotFoundError((name,), self.directory, "Mount") from None
                if not isinstance(error, FileNotFoundError):
                    raise SecretError(name, "", f"{folder} cannot be read: {error.strerror}") from None
                continue
            if found is not None:
                return found
        raise SecretError(name, "", f"{folder} does not hold still: it is replaced again and again")

    @staticmethod
    def _read(name: str, folder: Path) -> Mapping[str, str] | None:
        """All of one version; None when another one has taken its place meanwhile: then files may have been missing.

        All files are read from where `..data` leads to now: keys of two versions do not fit together.
        """
        whole, data = folder.resolve(strict=True), folder / "..data"
        version = data.resolve(strict=True) if data.is_symlink() else whole
        keys = sorted(entry for entry in os.listdir(version) if is_key(entry))
        found = {key: (version / key).resolve(strict=True) for key in keys}
        for key, path in found.items():
            if not path.is_relative_to(whole):
                raise SecretError(name, key, f"it is a link that leads out of {folder}")
        files = {key: path for key, path in found.items() if stat.S_ISREG(path.stat().st_mode)}
        if sum(path.stat().st_size for path in files.values()) > LARGEST:
            raise SecretError(name, "", f"it has more than {LARGEST} bytes")
        values = {key: text_of(name, key, path.read_bytes()) for key, path in files.items()}
        still = data.resolve(strict=True) if data.is_symlink() else whole
        return MappingProxyType(values) if still == version else None


@dataclass(frozen=True, slots=True)
class GivenSecrets:
    """Secrets that are at hand: name -> key -> text, from `origin`, which messages name. Values do not show."""

    values: Mapping[str, Mapping[str, str]] = field(repr=False)
    origin: str

    def read(self, name: str) -> Mapping[str, str]:
        """See `Secrets`."""
        if (found := self.values.get(check_name(name))) is None:
            raise SecretsNotFoundError((name,), self.origin, "Add")
        return found


@dataclass(frozen=True, slots=True)
class TaskSecret:
    """A Secret of a directory by its name, without any value: what a task is given. "" as name: none is needed."""

    secrets: DirectorySecrets
    name: str
    ca_bundle: CaBundle | None = None

    def options(self) -> Mapping[str, str]:
        """The values, read here and now; nothing without a name. Raises SecretError."""
        return options_of(self.secrets, self.name, self.ca_bundle)


NO_SECRETS: Final = GivenSecrets(MappingProxyType({}), "this process, which knows no Secrets")


def require(secrets: Secrets, names: Iterable[str]) -> None:
    """Raises SecretsNotFoundError, which has all of the `names` that are missing in one place; of any other SecretError
    the first.
    """
    missing: list[SecretsNotFoundError] = []
    for name in names:
        try:
            secrets.read(name)
        except SecretsNotFoundError as error:
            missing.append(error)
    if missing:
        where, remedy = missing[0].where, missing[0].remedy
        together = tuple(name for error in missing if error.where == where for name in error.names)
        raise SecretsNotFoundError(together, where, remedy)


def options_of(secrets: Secrets, name: str | None, ca_bundle: CaBundle | None = None) -> Mapping[str, str]:
    """The options of an object store: all keys of its Secret, and its authorities. Raises SecretError."""
    return options_and_authorities(secrets, name, ca_bundle)[0]


def options_and_authorities(
    secrets: Secrets, name: str | None, ca_bundle: CaBundle | None
) -> tuple[Mapping[str, str], str]:
    """The options of an object store, and for a database beside it the certificates of the bundle, in PEM; "" without
    one. Raises SecretError.
    """
    options, authorities = dict(secrets.read(name)) if name else {}, _authorities_of(secrets, ca_bundle)
    if authorities:
        options[ROOT_CERTIFICATE] = authorities
    return MappingProxyType(options), authorities


def _authorities_of(secrets: Secrets, bundle: CaBundle | None) -> str:
    """Raises SecretError, SecretMissingError: as `value_of`, and for a value that holds no certificate."""
    if bundle is None:
        return ""
    import ssl  # most processes never need it

    found = value_of(secrets, bundle.source, bundle.key)
    try:
        ssl.create_default_context(cadata=found)
    except (ssl.SSLError, ValueError):
        reason = "it holds no certificates in PEM (-----BEGIN CERTIFICATE-----): write those of the authorities"
        raise SecretError(bundle.source, bundle.key, reason) from None
    return found


def value_of(secrets: Secrets, name: str, key: str) -> str:
    """The text of one key. Raises SecretError, SecretMissingError for a key that is not there or is empty."""
    found = secrets.read(name).get(key)
    if not found:
        reason = "there is no such key" if found is None else "its value is empty"
        raise SecretMissingError(name, key, f"{reason}: add the key, or name another one")
    return found


def reason_of(error: SecretError) -> PolicyReason:
    """Return the reason of a policy's condition when its store cannot be scanned for want of a Secret."""
    if isinstance(error, SecretForbiddenError):
        return PolicyReason.PERMISSION_DENIED
    return PolicyReason.SECRET_MISSING if isinstance(error, SecretMissingError) else PolicyReason.SENSE_FAILED


def text_of(name: str, key: str, value: bytes) -> str:
    """A value as text, without the line breaks that editors and `--from-file` leave at its end. Raises SecretError."""
    try:
        return value.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise SecretError(name, key, _NOT_TEXT) from None


def check_name(name: str) -> str:
    """The name, if a Secret or ConfigMap of Kubernetes can have it; so it is one part of a path. Raises SecretError."""
    if len(name) > _LONGEST or _NAME.fullmatch(name) is None:
        raise SecretError(name[:_LONGEST], "", "no Secret can have this name: small letters, digits, - and .")
    return name


def is_key(key: str) -> bool:
    """True for what can be a key of a Secret; names that begin with `..` are the kubelet's own."""
    return len(key) <= _LONGEST and key != "." and not key.startswith("..") and _KEY.fullmatch(key) is not None


def write_secrets(directory: Path, values: Mapping[str, Mapping[str, str]]) -> None:
    """Name -> key -> text as `DirectorySecrets` reads it, for this user only; a Secret that is there already is
    replaced at one stroke. Raises SecretError, OSError.

    `directory` is there and private already; its creator removes it.
    """
    for name, keys in values.items():
        if not all(is_key(key) for key in keys):
            raise SecretError(name, "", "no Secret can have one of its keys: letters, digits, -, _ and .")
        folder = directory / check_name(name)
        folder.mkdir(mode=0o700, exist_ok=True)
        version = Path(tempfile.mkdtemp(prefix="..", dir=folder))
        for key, text in keys.items():
            descriptor = os.open(version / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        (folder / "..next").unlink(missing_ok=True)  # of somebody who died here
        (folder / "..next").symlink_to(version.name)
        (folder / "..next").replace(folder / "..data")
        for old in folder.iterdir():
            if not old.is_symlink() and old != version:
                shutil.rmtree(old)
