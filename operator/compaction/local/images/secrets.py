"""How this machine reaches packages, handed to a build as secrets: apt, pip and the certificates they trust.

A build step sees them under /run/secrets while it runs; no layer, no label and no log has them. A machine without any
such configuration hands over nothing but its package sources, and the tools use their own defaults.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

MOUNT: Final = "/run/secrets"
_CA_VARIABLES: Final = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PIP_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_APT_SETTING: Final = re.compile(r"^Acquire::.*;$")
_APT_FILES: Final = ("CaInfo", "CaPath", "SslCert", "SslKey")


def write_secrets(directory: Path, release: str, environment: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Secret id -> file in `directory` (which the caller removes); only what this machine has."""
    environment = os.environ if environment is None else environment
    bundle = certificates(environment)
    found = {
        "apt.list": package_sources(release),
        "apt.conf": apt_settings(has_certificates=bundle is not None),
        "pip.conf": pip_settings(),
    }
    if not found["apt.list"]:
        # The base image's own sources and settings are as good as any.
        del found["apt.list"], found["apt.conf"]
    secrets = {}
    for name, text in found.items():
        if text:
            secrets[name] = directory / name
            secrets[name].write_text(text)
    if bundle is not None:
        secrets["ca.crt"] = directory / "ca.crt"
        secrets["ca.crt"].write_bytes(bundle.read_bytes())
    return secrets


def certificates(environment: Mapping[str, str]) -> Path | None:
    """The bundle that a proxy's certificate was added to, if the environment names one."""
    named = (Path(environment[name]) for name in _CA_VARIABLES if environment.get(name))
    return next((path for path in named if path.is_file()), None)


def package_sources(release: str) -> str:
    """Lines of a sources.list for `release`, from what apt uses here; empty when it knows no such release."""
    if shutil.which("apt-get") is None:
        return ""
    form = "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
    answer = _said(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    lines = set()
    for target in answer.splitlines():
        origin, _, rest = target.partition("|")
        uri, suite, component = rest.rsplit("|", 2)
        # Read before the first `apt-get update` the origin is empty.
        if origin in {"Debian", ""} and suite.partition("-")[0].partition("/")[0] == release and component == "main":
            lines.add(f"deb {uri} {suite} main")
    return "".join(f"{line}\n" for line in sorted(lines))


def debian_mirror(release: str) -> str | None:
    """Where apt gets `release` here; None leaves debootstrap its own default."""
    for line in package_sources(release).splitlines():
        _, uri, suite, _ = line.split()
        if suite == release:
            return uri
    return None


def apt_settings(*, has_certificates: bool) -> str:
    """A configuration file for apt inside a build: how this machine fetches, and from where."""
    lines = [line for line in _said(["apt-config", "dump"]).splitlines() if _APT_SETTING.match(line)]
    kept = [line for line in lines if not any(word in line for word in _APT_FILES)]
    if has_certificates:
        kept.append(f'Acquire::https::CaInfo "{MOUNT}/ca.crt";')
    return "\n".join([f'Dir::Etc::sourcelist "{MOUNT}/apt.list";', 'Dir::Etc::sourceparts "-";', *kept, ""])


def pip_settings() -> str:
    """A configuration file for pip inside a build, from pip's own view of this machine; empty without any."""
    kept = []
    for line in _said([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in _PIP_SETTINGS:
            kept.append(f"{name} = {value.strip().strip(chr(39))}")
    return "\n".join(["[global]", *kept, ""]) if kept else ""


def _said(command: list[str]) -> str:
    """Standard output; empty when the command is not there or fails: a build then does without."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
