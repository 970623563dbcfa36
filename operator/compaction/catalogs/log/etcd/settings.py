"""How to reach etcd: endpoints, certificates, a user (docs/design/catalogs.md#client-of-etcd)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from compaction.catalogs.errors import CatalogLogAccessError, CatalogLogError

DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member: `http://host:port` or `https://host:port`."""

    secure: bool
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Raises CatalogLogError for anything but scheme, host and port; a password in a URL would get into messages,
        so the message does not repeat what stands before an "@".
        """
        shown = url.rpartition("@")[2][:200]
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
        except ValueError as error:
            raise CatalogLogError(shown, "not a URL; write https://host:port") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or "@" in parts.netloc:
            raise CatalogLogError(shown, "not an endpoint of etcd; write https://host:port, and the user apart from it")
        return cls(parts.scheme == "https", parts.hostname, port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM: whom to trust (the system's authorities when there is none), and who we are."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self, log: str) -> ssl.SSLContext:
        """Read the files. Raises CatalogLogAccessError, which names the file and never its content."""
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
            if self.certificate is not None:
                context.load_cert_chain(str(self.certificate), None if self.key is None else str(self.key))
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise CatalogLogAccessError(log, f"{files} cannot be read ({type(error).__name__})") from error
        return context


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Members of one etcd. `attempt_seconds`: for one request to one member; `call_seconds`: for a call with all its
    attempts.
    """

    endpoints: tuple[Endpoint, ...]
    tls: Tls = Tls()
    user: str = ""
    password: str = field(default="", repr=False)
    attempt_seconds: float = 4.0
    call_seconds: float = 15.0

    @classmethod
    def of(cls, urls: str, **more: object) -> EtcdSettings:
        """Endpoints separated by commas. Raises CatalogLogError as `Endpoint.parse`, and when there is none."""
        endpoints = tuple(Endpoint.parse(url.strip()) for url in urls.split(",") if url.strip())
        if not endpoints:
            raise CatalogLogError("etcd", "no endpoint is named; write https://host:port")
        return cls(endpoints, **more)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """The endpoints, for messages."""
        return ",".join(map(str, self.endpoints))
