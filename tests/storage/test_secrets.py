"""Secrets from mounted files: what the kubelet writes is read whole, and nothing else ever is."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.policy.values import CaBundle
from compaction.local.cluster.certs import ensure_authority
from compaction.storage.errors import SecretError, SecretForbiddenError, SecretMissingError, SecretsNotFoundError
from compaction.storage.secrets import (
    LARGEST,
    DirectorySecrets,
    GivenSecrets,
    TaskSecret,
    check_name,
    is_key,
    options_of,
    require,
    text_of,
    value_of,
    write_secrets,
)
from support.faults.unprivileged import as_nobody

VALUE = "s3cr3t-value-that-nobody-may-see"


def mount(
    root: Path, name: str, values: Mapping[str, str | bytes], *, version: str = "..2026_11_21_10_00_00.1"
) -> None:
    """A Secret as the kubelet mounts it, or the next version of one: links through `..data`, changed at one stroke."""
    folder = root / name
    (folder / version).mkdir(parents=True)
    for key, value in values.items():
        (folder / version / key).write_bytes(value.encode() if isinstance(value, str) else value)
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(Path("..data") / key)
    (folder / "..data_tmp").symlink_to(version)
    (folder / "..data_tmp").rename(folder / "..data")


def test_a_mounted_secret_is_read_whole(tmp_path: Path) -> None:
    mount(tmp_path, "store", {"access_key_id": "me", "secret_access_key": VALUE})
    assert DirectorySecrets(str(tmp_path)).read("store") == {"access_key_id": "me", "secret_access_key": VALUE}


def test_a_changed_secret_is_seen_at_the_next_read_and_removed_keys_are_gone(tmp_path: Path) -> None:
    secrets = DirectorySecrets(str(tmp_path))
    mount(tmp_path, "store", {"a": "1", "b": "1"})
    assert secrets.read("store") == {"a": "1", "b": "1"}
    mount(tmp_path, "store", {"a": "2", "c": "2"}, version="..2026_11_21_10_05_00.2")
    assert secrets.read("store") == {"a": "2", "c": "2"}


def test_keys_of_two_versions_are_never_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet changes `..data` between the first and the second file, and removes the version that it led to."""
    mount(tmp_path, "store", {"a": "1", "b": "1"})
    original = Path.read_bytes
    changed: list[bool] = []

    def change_then_read(path: Path) -> bytes:
        if path.name == "b" and not changed:
            changed.append(True)
            mount(tmp_path, "store", {"a": "2", "b": "2"}, version="..2026_11_21_10_05_00.2")
            for old in sorted((tmp_path / "store" / "..2026_11_21_10_00_00.1").iterdir()):
                old.unlink()
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", change_then_read)
    assert DirectorySecrets(str(tmp_path)).read("store") == {"a": "2", "b": "2"}
    assert changed


def test_plain_files_are_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "url").write_text("sqlite:///index.db\n")
    assert value_of(DirectorySecrets(str(tmp_path)), "store", "url") == "sqlite:///index.db"


@pytest.mark.parametrize(
    "name", ["../other", "..", ".", "", "a/b", "/etc", "a/../b", "A", "a\0", "-a", "a.", "a" * 254]
)
def test_a_name_cannot_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "key").write_text(VALUE)
    (tmp_path / "secrets").mkdir()
    with pytest.raises(SecretError, match="no Secret can have this name"):
        DirectorySecrets(str(tmp_path / "secrets")).read(name)


@given(st.text(max_size=20))
def test_what_passes_as_a_name_or_a_key_is_one_part_of_a_path(text: str) -> None:
    try:
        named = check_name(text) == text
    except SecretError:
        named = False
    for passed in (named, is_key(text)):
        assert not passed or (Path("/secrets") / text).parent == Path("/secrets")
        assert not passed or os.path.normpath(f"/secrets/{text}") == f"/secrets/{text}"


def test_a_link_that_leads_out_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(VALUE)
    mount(tmp_path / "secrets", "store", {"a": "1"})
    (tmp_path / "secrets" / "store" / "..2026_11_21_10_00_00.1" / "b").symlink_to(tmp_path / "outside")
    with pytest.raises(SecretError, match=r"key b of Secret store: it is a link that leads out") as caught:
        DirectorySecrets(str(tmp_path / "secrets")).read("store")
    assert VALUE not in str(caught.value)


def test_a_version_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text(VALUE)
    (tmp_path / "secrets" / "store").mkdir(parents=True)
    (tmp_path / "secrets" / "store" / "..data").symlink_to(tmp_path / "outside")
    with pytest.raises(SecretError, match="leads out"):
        DirectorySecrets(str(tmp_path / "secrets")).read("store")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    secrets = DirectorySecrets(str(tmp_path))
    mount(tmp_path, "store", {"a": "1", "empty": "\n"})
    with pytest.raises(SecretMissingError, match=r'^Secret "index" not found in .*\. Mount it or correct the name\.$'):
        secrets.read("index")
    with pytest.raises(SecretMissingError, match=r"^key url of Secret store: there is no such key"):
        value_of(secrets, "store", "url")
    with pytest.raises(SecretMissingError, match=r"^key empty of Secret store: its value is empty"):
        value_of(secrets, "store", "empty")


def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    mount(tmp_path, "store", {"a": VALUE})
    value = tmp_path / "store" / "..2026_11_21_10_00_00.1" / "a"
    with (
        as_nobody(tmp_path, forbidden=value),
        pytest.raises(SecretForbiddenError, match=r"Secret store: .* Permission denied"),
    ):
        DirectorySecrets(str(tmp_path)).read("store")


def test_a_value_that_is_no_text_is_named_and_not_shown(tmp_path: Path) -> None:
    mount(tmp_path, "store", {"a": VALUE.encode() + b"\xff"})
    with pytest.raises(SecretError, match=r"^key a of Secret store: its value is not UTF-8 text") as caught:
        DirectorySecrets(str(tmp_path)).read("store")
    assert VALUE not in repr(caught.value)


def test_a_file_that_is_no_secret_is_not_read_into_memory(tmp_path: Path) -> None:
    mount(tmp_path, "store", {"a": "1"})
    with (tmp_path / "store" / "..2026_11_21_10_00_00.1" / "a").open("ab") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(SecretError, match="more than"):
        DirectorySecrets(str(tmp_path)).read("store")


def test_a_config_map_is_read_as_a_secret_and_named_as_what_it_is(tmp_path: Path) -> None:
    mount(tmp_path, "configmap_trust", {"ca.crt": "x"})
    secrets = DirectorySecrets(str(tmp_path))
    assert secrets.read("configmap_trust") == {"ca.crt": "x"}
    with pytest.raises(SecretMissingError, match=r"^key ca of ConfigMap trust: there is no such key"):
        value_of(secrets, "configmap_trust", "ca")
    with pytest.raises(SecretsNotFoundError, match=r'^Secrets "a" and "b" and ConfigMap "c" not found in .*them or'):
        require(secrets, ("a", "configmap_c", "b"))
    with pytest.raises(SecretsNotFoundError, match=r'^ConfigMap "c" not found in .*Mount it or correct the name\.'):
        require(secrets, ("configmap_c",))


@pytest.mark.parametrize("bundle", [CaBundle(secret_name="trust"), CaBundle(config_map_name="trust", key="all.pem")])
def test_a_bundle_is_an_option_of_the_store_and_holds_certificates(tmp_path: Path, bundle: CaBundle) -> None:
    authority = ensure_authority(tmp_path / "authority").ca.read_text().rstrip("\n")
    both = f"# ours\n{authority}\n{authority}"
    write_secrets(tmp_path, {bundle.source: {bundle.key: both}, "store": {"region": "x"}})
    secrets = DirectorySecrets(str(tmp_path))
    found = {"region": "x", "root_certificate": both}
    assert TaskSecret(secrets, "store", bundle).options() == options_of(secrets, "store", bundle) == found
    for wrong in (VALUE, "-----BEGIN CERTIFICATE-----\n" + VALUE):
        write_secrets(tmp_path, {bundle.source: {bundle.key: wrong}})
        with pytest.raises(
            SecretError, match=f"key {bundle.key} of .* trust: it holds no certificates in PEM"
        ) as caught:
            options_of(secrets, None, bundle)
        assert VALUE not in str(caught.value)


def test_a_line_break_at_the_end_is_no_part_of_a_value() -> None:
    assert text_of("store", "a", b" two\nlines \r\n\n") == " two\nlines "


def test_given_secrets_are_read_by_name_and_show_no_value() -> None:
    secrets = GivenSecrets({"store": {"a": VALUE}}, "policy.yaml")
    assert secrets.read("store") == {"a": VALUE}
    assert VALUE not in repr(secrets)
    with pytest.raises(
        SecretMissingError, match=r'^Secret "index" not found in policy.yaml\. Add it or correct the name\.$'
    ):
        secrets.read("index")


def test_without_a_name_there_are_no_options(tmp_path: Path) -> None:
    assert options_of(DirectorySecrets(str(tmp_path)), None) == {}
    assert TaskSecret(DirectorySecrets(str(tmp_path)), "").options() == {}


def test_a_reference_travels_without_its_values_and_opens_them_where_it_arrives(tmp_path: Path) -> None:
    write_secrets(tmp_path, {"store": {"secret_access_key": VALUE}})
    reference = TaskSecret(DirectorySecrets(str(tmp_path)), "store")
    assert reference.options() == {"secret_access_key": VALUE}
    sent = pickle.dumps(reference)
    assert VALUE.encode() not in sent
    assert VALUE not in repr(reference)
    assert pickle.loads(sent).options() == {"secret_access_key": VALUE}


def test_errors_survive_the_way_from_a_task() -> None:
    for error in (
        SecretMissingError("store", "url", "there is no such key: add it"),
        SecretsNotFoundError(("store", "index"), "namespace storage", "Create"),
    ):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_all_that_are_missing_are_named_at_once() -> None:
    secrets = GivenSecrets({"there": {"a": VALUE}}, "policy.yaml")
    require(secrets, ("there",))
    with pytest.raises(SecretsNotFoundError) as missing:
        require(secrets, ("creds", "there", "idx"))
    assert str(missing.value) == ('Secrets "creds" and "idx" not found in policy.yaml. Add them or correct the names.')


def test_written_secrets_are_private(tmp_path: Path) -> None:
    write_secrets(tmp_path, {"store": {"a": VALUE}})
    (value,) = (path for path in tmp_path.rglob("a") if path.is_file())
    assert {value.parent.parent, value.parent.parent.parent} == {tmp_path / "store", tmp_path}
    assert {path.stat().st_mode & 0o777 for path in (value.parent, value.parent.parent)} == {0o700}
    assert value.stat().st_mode & 0o777 == 0o600


def test_a_secret_that_is_written_again_is_replaced_and_nothing_of_the_old_one_stays(tmp_path: Path) -> None:
    write_secrets(tmp_path, {"store": {"a": VALUE, "b": VALUE}, "index": {"url": "1"}})
    write_secrets(tmp_path, {"store": {"a": "2"}})
    secrets = DirectorySecrets(str(tmp_path))
    assert (secrets.read("store"), secrets.read("index")) == ({"a": "2"}, {"url": "1"})
    assert VALUE.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_reader_beside_a_writer_sees_one_version_or_the_other(tmp_path: Path) -> None:
    write_secrets(tmp_path, {"store": {"a": "0", "b": "0"}})
    ending = threading.Event()

    def write() -> None:
        number = 0
        while not ending.is_set():
            number += 1
            write_secrets(tmp_path, {"store": {"a": str(number), "b": str(number)}})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [DirectorySecrets(str(tmp_path)).read("store") for _ in range(300)]
    finally:
        ending.set()
        writer.join()
    assert all(item["a"] == item["b"] for item in seen)
    assert len({item["a"] for item in seen}) > 1


@pytest.mark.parametrize("key", ["..data", ".", "a/b", "", "a b"])
def test_a_key_that_no_secret_has_is_not_written(tmp_path: Path, key: str) -> None:
    with pytest.raises(SecretError, match="keys"):
        write_secrets(tmp_path, {"store": {key: VALUE}})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
