"""The connection to the API server: a plain, frozen `ApiConnection`, and the release that it names."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from compaction.api.text.printing import MESSAGE_LIMIT, cut, printable
from compaction.kube.errors import ConnectionConfigError

if TYPE_CHECKING:
    from kubernetes.client import Configuration


# The release of this program: workers say it in their Leases, the operator compares.

OWN_VERSION: Final = version("compaction-operator")


# The connection to the API server: a plain, frozen `ApiConnection`, wherever it came from.
#
# Order: the kubeconfig named explicitly; `KUBECONFIG`; the service account mounted into a pod; `~/.kube/config`. The
# `kubernetes` package is used for one thing only, reading kubeconfig files (with their exec plugins), and loaded for
# that only: the images do without its 120 MB, because a pod has a service account. Nothing of it leaves this module.
# Invariant: a `ApiConnection` holds no secret in a field that a log line or a repr would show.

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_LIFETIME_SECONDS = 60.0

# The package remembers the files of a kubeconfig's embedded certificates by content, in one table of the process, and
# enters a file there before it has written it: a second thread would load an empty certificate.
_one_reader = threading.RLock()


class TokenProvider:
    """Gives the value of the Authorization header, re-reading its source every minute and after a 401.

    Projected service account tokens are replaced on disk long before they expire
    (docs/design/control-plane-traps.md#credentials), so a minute is enough; a kubeconfig's exec plugin is asked again
    on the same schedule and caches for itself.
    """

    def __init__(
        self,
        read: Callable[[], str | None],
        *,
        lifetime: float = TOKEN_LIFETIME_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._lifetime = lifetime
        self._clock = clock
        self._value: str | None = None
        self._stale_at = float("-inf")

    def header(self) -> str | None:
        """`Bearer ...`, `Basic ...`, or None when a client certificate is the only credential."""
        if self._clock() >= self._stale_at:
            self._value = self._read()
            self._stale_at = self._clock() + self._lifetime
        return self._value

    def expire(self) -> None:
        """Forget the cached value: the server has just refused it."""
        self._stale_at = float("-inf")


def no_token() -> TokenProvider:
    """A provider for servers that know us by certificate alone, or not at all."""
    return TokenProvider(lambda: None, lifetime=float("inf"))


def static_token(token: str) -> TokenProvider:
    """A fixed bearer token."""
    return TokenProvider(lambda: f"Bearer {token}", lifetime=float("inf"))


def file_token(path: Path) -> TokenProvider:
    """A bearer token kept in a file that another process rotates."""

    def read() -> str:
        try:
            return f"Bearer {path.read_text().strip()}"
        except OSError as error:
            raise ConnectionConfigError(f"cannot read the service account token {path}: {error}") from error

    return TokenProvider(read)


@dataclass(frozen=True, slots=True)
class ApiConnection:
    """Everything a client needs: base URL without a trailing slash, TLS, credentials, the default namespace.

    `user`, `groups`: who the server is asked to take us for (impersonation); None: who the credentials say.
    """

    server: str
    ssl_context: ssl.SSLContext | None = field(repr=False)
    token: TokenProvider = field(repr=False)
    namespace: str = "default"
    proxy: str | None = None
    server_hostname: str | None = None
    user: str | None = None
    groups: tuple[str, ...] = ()


def own_server(env: Mapping[str, str] = os.environ) -> str:
    """URL of the API server of the cluster whose pod we run in, from what every pod's environment says.

    Raises ConnectionConfigError outside of a pod.
    """
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConnectionConfigError("KUBERNETES_SERVICE_HOST is not set: this process does not run inside a pod")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def runs_in_a_pod(env: Mapping[str, str] = os.environ) -> bool:
    """True inside a pod with a service account."""
    return bool(env.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


def load_connection(
    kubeconfig: Path | str | None = None,
    *,
    context: str | None = None,
    namespace: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> ApiConnection:
    """Find the API server in the documented order.

    Raises ConnectionConfigError naming what was tried, or which file is wrong and why.
    """
    if kubeconfig is not None:
        return from_kubeconfig(str(kubeconfig), context=context, namespace=namespace)
    if env.get("KUBECONFIG"):
        return from_kubeconfig(env["KUBECONFIG"], context=context, namespace=namespace)
    if runs_in_a_pod(env):
        return in_cluster(env, namespace=namespace)
    fallback = Path("~/.kube/config").expanduser()
    if fallback.exists():
        return from_kubeconfig(str(fallback), context=context, namespace=namespace)
    raise ConnectionConfigError(
        "no Kubernetes API server is configured: give --kubeconfig, set KUBECONFIG, run inside a pod with a service "
        f"account, or create {fallback}; `compactor local up` starts one on this machine"
    )


def in_cluster(
    env: Mapping[str, str] = os.environ, *, directory: Path = SERVICE_ACCOUNT, namespace: str | None = None
) -> ApiConnection:
    """The service account of the pod we run in."""
    server = own_server(env)
    try:
        ssl_context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        own_namespace = (directory / "namespace").read_text().strip()
    except OSError as error:
        raise ConnectionConfigError(f"the service account mounted at {directory} is incomplete: {error}") from error
    return ApiConnection(
        server=server,
        ssl_context=ssl_context,
        token=file_token(directory / "token"),
        namespace=namespace or own_namespace,
    )


def from_kubeconfig(path: str, *, context: str | None = None, namespace: str | None = None) -> ApiConnection:
    """The current (or named) context of a kubeconfig; `path` may be a colon-separated list as in KUBECONFIG.

    Any thread may call it. Raises ConnectionConfigError naming the file and what is wrong with it.
    """
    with _one_reader:
        return _read_kubeconfig(path, context, namespace)


def _read_kubeconfig(path: str, context: str | None, namespace: str | None) -> ApiConnection:
    try:
        # Imported here: only a kubeconfig needs the package, and an image for pods can do without it.
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, kube_config
    except ModuleNotFoundError as error:
        raise ConnectionConfigError(
            f"kubeconfig {path} cannot be read here: the Python package `kubernetes` is not installed. In a pod give "
            "no kubeconfig, then its service account is used; elsewhere `pip install kubernetes`"
        ) from error
    config = Configuration(host="")
    # The package would otherwise take a proxy from the environment for every host, loopback included.
    config.proxy = None
    try:
        kube_config.load_kube_config(path, context=context, client_configuration=config, persist_config=False)
        contexts, active = kube_config.list_kube_config_contexts(path)
        chosen = next((entry for entry in contexts if entry["name"] == context), active) if context else active
        own_namespace = str(chosen["context"].get("namespace") or "default")
    except (ConfigException, OSError, ValueError, yaml.YAMLError) as error:
        raise ConnectionConfigError(f"kubeconfig {path} cannot be used: {_told(error)}") from error
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        # The package takes the shape of the file for granted, and trips over whatever is not as it should be.
        raise ConnectionConfigError(
            f"kubeconfig {path} cannot be used: it is not of the form that kubectl writes ({_told(error)})"
        ) from error
    if not isinstance(config.host, str):
        raise ConnectionConfigError(f"kubeconfig {path} cannot be used: a cluster's server is not a URL")
    return ApiConnection(
        server=config.host.rstrip("/"),
        ssl_context=_ssl_context(config, path) if config.host.startswith("https") else None,
        token=TokenProvider(lambda: _authorization(config)),
        namespace=namespace or own_namespace,
        proxy=config.proxy,
        server_hostname=config.tls_server_name or None,
    )


def _told(error: Exception) -> str:
    return printable(cut(" ".join(str(error).split()) or type(error).__name__, MESSAGE_LIMIT))


def _authorization(config: Configuration) -> str | None:
    # Runs the refresh hook: exec plugins and token files are read again when they expired. The package keeps `Basic`
    # credentials in the same place; releases before 37 knew it by the name of the header.
    with _one_reader:
        header = config.get_api_key_with_prefix("BearerToken", "authorization")
    return str(header) if header else None


def _ssl_context(config: Configuration, path: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ssl_ca_cert or None)
        if config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConnectionConfigError(f"kubeconfig {path}: a certificate or key cannot be loaded: {error}") from error
    if not config.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
