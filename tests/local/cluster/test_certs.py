"""Certificates: what is in them, who can read them, and when they are made again."""

from __future__ import annotations

import datetime as dt
import json
import stat
import subprocess

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from compaction.local.cluster import certs
from compaction.local.cluster.certs import Authority, ensure_authority, write_private


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


def test_a_client_without_groups_is_in_none(tmp_path):
    """A default organization of a library would be a group that roles can be bound to."""
    subject = load(ensure_authority(tmp_path / "c").issue_client("ann").certificate).subject
    assert subject.rfc4514_string() == "CN=ann"


def test_a_certificate_serves_one_purpose(tmp_path):
    """Otherwise a client could pose as the API server, and the API server's certificate would be a user's."""
    authority = ensure_authority(tmp_path / "c")
    for pair, purpose in (
        (authority.issue_client("ann", groups=("dev",)), ExtendedKeyUsageOID.CLIENT_AUTH),
        (authority.issue_server(), ExtendedKeyUsageOID.SERVER_AUTH),
    ):
        usage = load(pair.certificate).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]


def test_the_api_server_reads_user_and_groups(control_plane, tmp_path):
    for name, groups in (("ann", ()), ("bob", ("dev", "ops"))):
        config = control_plane.running.kubeconfig_for(name, tmp_path / name, groups=groups)
        command = [str(control_plane.binaries.kubectl), f"--kubeconfig={config}", "auth", "whoami", "--output=json"]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert answer["status"]["userInfo"]["username"] == name
        assert set(answer["status"]["userInfo"]["groups"]) == {*groups, "system:authenticated"}


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
