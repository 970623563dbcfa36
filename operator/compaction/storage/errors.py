"""Errors of what stores are kept in: object stores, SQL databases, and the Secrets that open them."""

from __future__ import annotations

from compaction.errors import CONFIG_MAP, CompactionError


class StorageError(CompactionError):
    """A dependency of a store cannot be used: a Secret, object storage, or a database. A kind of store reports these
    together with errors of its own.
    """


class SecretError(StorageError):
    """A Secret (`secret`), or one `key` of it ("": all of it), that cannot be used; `reason` says why and what to do.

    No value is ever part of it.
    """

    def __init__(self, secret: str, key: str, reason: str) -> None:
        super().__init__(secret, key, reason)
        self.secret = secret
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        noun, name = self.shown(self.secret)
        where = f"key {self.key} of {noun} {name}" if self.key else f"{noun} {name}"
        return f"{where}: {self.reason}"

    @staticmethod
    def shown(name: str) -> tuple[str, str]:
        """Noun and name of what is read as a Secret (`storage.secrets`)."""
        config_map = name.removeprefix(CONFIG_MAP)
        return ("Secret", name) if config_map == name else ("ConfigMap", config_map)


class SecretMissingError(SecretError):
    """There is no such Secret, or it has no such key."""


class SecretsNotFoundError(SecretMissingError):
    """None of the Secrets `names` is in `where`; `remedy`: the verb for what to do about it there, such as Create."""

    def __init__(self, names: tuple[str, ...], where: str, remedy: str) -> None:
        super().__init__(names[0], "", f"not found in {where}")
        self.args = (names, where, remedy)  # what it is pickled with
        self.names = names
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        shown = [self.shown(name) for name in self.names]
        if len(shown) == 1:
            noun, name = shown[0]
            return f'{noun} "{name}" not found in {self.where}. {self.remedy} it or correct the name.'
        together = {noun: " and ".join(f'"{name}"' for item, name in shown if item == noun) for noun, _ in shown}
        named = " and ".join(f"{noun}{'s' if ' and ' in names else ''} {names}" for noun, names in together.items())
        return f"{named} not found in {self.where}. {self.remedy} them or correct the names."


class SecretForbiddenError(SecretError):
    """The Secret may not be read."""


class RewriteStoppedError(CompactionError):
    """A rewrite was asked to stop (lease lost, worker leaving); its partial file was removed."""


class ObjectStoreUrlError(StorageError):
    """A URL or option from which no object store can be opened; options are named, their values never are."""


class StoreOptionsError(StorageError):
    """A file of options of an object store that holds none, or a Secret that cannot be read; values are never named."""


class ObjectError(StorageError):
    """One object (`path`, below the store's root) and what is wrong (`reason`, without anything secret)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ObjectPathError(ObjectError):
    """A path that no object of ours can have: empty parts, `..`, control characters, or too long."""


class ObjectMissingError(ObjectError):
    """There is no such object."""


class ObjectExistsError(ObjectError):
    """The object was to be created, and another one has the path."""


class ObjectChangedError(ObjectError):
    """The object was replaced while it was read; blocks never change, so this is a foreign writer."""


class ObjectTruncatedError(ObjectError):
    """The object is shorter than what was asked of it."""


class ObjectAccessError(ObjectError):
    """The credentials are missing, wrong, or may not do this; or there is no such bucket."""


class ObjectRefusedError(ObjectError):
    """The store refused the request, and would again."""


class ObjectStoreUnavailableError(ObjectError):
    """No usable answer, even after the bounded retries. A write or a deletion may have happened: it may be repeated."""


class DatabaseError(StorageError):
    """A database (`database`: what it holds and where, without credentials) cannot do what was asked; `reason` says
    why.
    """

    def __init__(self, database: str, reason: str) -> None:
        super().__init__(database, reason)
        self.database = database
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.database}: {self.reason}"


class DatabaseUrlError(DatabaseError):
    """A URL that is not one of SQLite or PostgreSQL, or names no database."""


class DatabaseUnavailableError(DatabaseError):
    """The database did not answer, or not in time. What was asked may have happened: every call may be repeated.
    `reason` begins with a verb.
    """

    def __str__(self) -> str:
        return f"{self.database} {self.reason}"


class DatabaseUnreachableError(DatabaseUnavailableError):
    """There is no connection to the database."""


class DatabaseLoginError(DatabaseError):
    """The database refuses the login; `reason` begins with a verb."""

    def __str__(self) -> str:
        return f"{self.database} {self.reason}"


class DatabaseSchemaError(DatabaseError):
    """The database holds none of our tables, or those of another version of this program."""


class LackOfResourcesError(ObjectStoreUnavailableError):
    """This machine had not what it takes to read the object: memory, open files, disk space. It says nothing of the
    object.
    """

    def __init__(self, path: str, lacking: str) -> None:
        super().__init__(path, f"cannot be read on this machine now: {lacking}; make room for it, then try again")
