"""Certificates: what is in them, who can read them, and when they are made again."""

from __future__ import annotations

import datetime as dt
import stat

from cryptography import x509
from cryptography.x509.oid import NameOID

from compaction.local import certs
from compaction.local.certs import Authority, ensure_authority, write_private


def load(data: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(data)


def test_server_certificate_is_for_loopback_and_signed_by_the_authority(tmp_path):
    authority = ensure_authority(tmp_path / "c")
    ca, server = load(authority.ca.read_bytes()), load(authority.server[0].read_bytes())
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert server.not_valid_after_utc > dt.datetime.now(dt.UTC) + dt.timedelta(days=300)
    assert server.not_valid_before_utc < dt.datetime.now(dt.UTC)


def test_client_certificate_names_user_and_groups(tmp_path):
    pair = ensure_authority(tmp_path / "c").issue_client("ann", groups=("dev", "ops"))
    subject = load(pair.certificate).subject
    assert [item.value for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["ann"]
    assert {item.value for item in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)} == {"dev", "ops"}


def test_secrets_are_readable_by_their_owner_only(tmp_path):
    ensure_authority(tmp_path / "c")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c").iterdir()} == {0o600}


def test_a_good_authority_is_kept(tmp_path):
    first = ensure_authority(tmp_path / "c").ca.read_bytes()
    assert ensure_authority(tmp_path / "c").ca.read_bytes() == first


def test_interrupted_creation_is_done_again(tmp_path):
    authority = ensure_authority(tmp_path / "c")
    first = authority.ca.read_bytes()
    authority.server[0].unlink()
    assert ensure_authority(tmp_path / "c").ca.read_bytes() != first
    load(Authority(tmp_path / "c").server[0].read_bytes())


def test_nearly_expired_authority_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(certs, "LIFETIME", dt.timedelta(days=29))
    first = ensure_authority(tmp_path / "c").ca.read_bytes()
    monkeypatch.undo()
    assert ensure_authority(tmp_path / "c").ca.read_bytes() != first


def test_private_file_replaces_a_readable_one(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
