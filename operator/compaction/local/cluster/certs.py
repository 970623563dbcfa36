"""Certificates of a local control plane: an authority of its own, a server certificate, client certificates on demand.

The authority lives and dies with the state directory; it is trusted by nothing but the kubeconfig files written beside
it. Keys are P-256 (milliseconds to make, accepted by kube-apiserver for TLS and for service account tokens) and
readable by the owner only.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = dt.timedelta(days=365)
RENEW_BEFORE = dt.timedelta(days=30)
CLOCK_SKEW = dt.timedelta(minutes=5)
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A PEM certificate and its PEM private key."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Authority:
    """The files of one control plane in `directory`: ca.crt/key, server.crt/key, service-accounts.key."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def server(self) -> tuple[Path, Path]:
        return self.directory / "server.crt", self.directory / "server.key"

    @property
    def service_accounts(self) -> Path:
        return self.directory / "service-accounts.key"

    def issue_client(self, name: str, *, groups: tuple[str, ...] = ()) -> KeyPair:
        """A client certificate: kube-apiserver reads the user from the common name and the groups from the
        organisations.
        """
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        subject += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        return self._issue(x509.Name(subject), usage=ExtendedKeyUsageOID.CLIENT_AUTH, names=())

    def issue_server(self, addresses: Sequence[str] = (LOOPBACK,)) -> KeyPair:
        """The API server's certificate for `addresses` (IP) and its in-cluster names."""
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in SERVER_NAMES]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        return self._issue(_common_name("kube-apiserver"), usage=ExtendedKeyUsageOID.SERVER_AUTH, names=tuple(names))

    def _issue(
        self, subject: x509.Name, *, usage: x509.ObjectIdentifier, names: tuple[x509.GeneralName, ...]
    ) -> KeyPair:
        ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
        ca_key = serialization.load_pem_private_key((self.directory / "ca.key").read_bytes(), password=None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self.directory / 'ca.key'} is not an elliptic curve key")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, issuer=ca.subject, key=key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return KeyPair(certificate=_pem(builder.sign(ca_key, hashes.SHA256())), key=_pem_key(key))


def ensure_authority(directory: Path, *, addresses: Sequence[str] = (LOOPBACK,)) -> Authority:
    """The authority kept in `directory`, made when there is none yet or when it ends within a month; then with a server
    certificate for `addresses`.
    """
    authority = Authority(directory)
    if _usable(authority):
        return authority
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _common_name("compaction local control plane")
    certificate = (
        _builder(subject, issuer=subject, key=key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_ca_usage(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(directory / "ca.key", _pem_key(key))
    write_private(authority.ca, _pem(certificate))
    write_private(authority.service_accounts, _pem_key(ec.generate_private_key(ec.SECP256R1())))
    server = authority.issue_server(addresses)
    write_private(authority.server[1], server.key)
    # Written last: `_usable` looks at it, so an interrupted creation is simply done again.
    write_private(authority.server[0], server.certificate)
    return authority


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, complete or not at all."""
    partial = path.with_name(path.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.replace(path)


def _usable(authority: Authority) -> bool:
    needed = (authority.ca, authority.directory / "ca.key", authority.service_accounts, *authority.server)
    if not all(path.exists() for path in needed):
        return False
    horizon = dt.datetime.now(dt.UTC) + RENEW_BEFORE
    pair = (authority.ca, authority.server[0])
    return all(x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc > horizon for path in pair)


def _builder(subject: x509.Name, *, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
