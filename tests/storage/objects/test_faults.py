"""A store that stumbles: what passes is repeated, what does not is told, and nothing secret is ever said.

The faults are those of a proxy between us and a real S3 server, so what happened on the server is real.
"""

from __future__ import annotations

import io
import pickle
import traceback
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from compaction.storage.errors import (
    ObjectAccessError,
    ObjectError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectRefusedError,
    ObjectStoreUnavailableError,
    ObjectStoreUrlError,
    ObjectTruncatedError,
)
from compaction.storage.objects.opening import Store, translate
from compaction.storage.objects.store import ObjectStorage, Retrying, open_objects
from support.faults.proxies import Fault, FaultProxy
from support.object_stores import QUICK, S3

DATA = bytes(range(256)) * 40
ONCE = [Fault.BUSY, Fault.BUSY_AFTER, Fault.RESET, Fault.RESET_AFTER, Fault.SILENT, Fault.SILENT_AFTER, Fault.TRUNCATED]


@pytest.fixture
def store(s3: S3, proxy: FaultProxy) -> ObjectStorage:
    """A bucket with two objects, reached through the proxy."""
    url = s3.bucket()
    direct = s3.open(url)
    direct.put("t/o", DATA)
    direct.put("t/p", b"p")
    return s3.open(url, endpoint=proxy.endpoint, read_timeout="1s")


@pytest.mark.parametrize("fault", ONCE)
def test_what_passes_is_repeated(store: ObjectStorage, proxy: FaultProxy, fault: Fault) -> None:
    proxy.plan(fault)
    assert store.get("t/o") == DATA
    proxy.plan(fault)
    assert store.get_range("t/o", 3, 300) == DATA[3:303]
    proxy.plan(fault)
    assert store.get_ranges("t/o", [(3, 300), (0, 2)]) == [DATA[3:303], DATA[:2]]
    proxy.plan(fault)
    assert store.head("t/o").size == len(DATA)
    proxy.plan(fault)
    assert sorted(info.path for info in store.list("t")) == ["t/o", "t/p"]
    proxy.plan(fault)
    assert store.reader("t/o").read() == DATA


@pytest.mark.parametrize("fault", ONCE)
def test_a_write_is_repeated_whole(store: ObjectStorage, proxy: FaultProxy, fault: Fault, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(DATA)
    stream = io.BytesIO(b"skipped" + DATA)
    stream.seek(7)
    for path, data in (("w/bytes", DATA), ("w/path", file), ("w/stream", stream)):
        proxy.plan(fault, method="PUT")
        store.put(path, data)
        assert store.get(path) == DATA


@pytest.mark.parametrize("fault", ONCE)
def test_a_creation_whose_answer_got_lost_is_known_to_be_ours(
    store: ObjectStorage, proxy: FaultProxy, fault: Fault
) -> None:
    """The second try meets the object of the first; a stranger's is told from it by its content."""
    proxy.plan(fault, method="PUT", times=2)
    store.put("claims/mine", b"mine", if_absent=True)
    assert store.get("claims/mine") == b"mine"
    proxy.plan(fault, method="PUT")
    with pytest.raises(ObjectExistsError):
        store.put("claims/mine", b"theirs", if_absent=True)
    with pytest.raises(ObjectExistsError):
        store.put("claims/mine", b"mine", if_absent=True)
    assert store.get("claims/mine") == b"mine"


@pytest.mark.parametrize("fault", ONCE)
def test_a_deletion_is_repeated(store: ObjectStorage, proxy: FaultProxy, fault: Fault) -> None:
    proxy.plan(fault)
    assert store.delete(["t/o", "t/p", "t/nothing"]) == []
    proxy.clear()
    assert list(store.list()) == []


def test_a_deletion_that_cannot_be_is_named_and_the_others_are_done(
    s3: S3, store: ObjectStorage, proxy: FaultProxy
) -> None:
    proxy.plan(Fault.BUSY, method="POST", times=2 * QUICK.tries)
    proxy.plan(Fault.BUSY, method="DELETE", times=QUICK.tries)
    failed = store.delete(["t/o", "t/p"])
    assert all(isinstance(error, ObjectStoreUnavailableError) for _, error in failed)
    proxy.clear()
    assert {path for path, _ in failed} == {info.path for info in store.list()}
    assert store.delete([path for path, _ in failed]) == []
    assert list(store.list()) == []


def test_a_long_listing_goes_on_where_it_was_cut(s3: S3, proxy: FaultProxy) -> None:
    url = s3.bucket()
    names = [f"l/{number:04}" for number in range(1005)]
    folder = s3.gateway.buckets / url.removeprefix("s3://") / "l"
    folder.mkdir()
    for name in names:
        (folder / name.removeprefix("l/")).write_bytes(b"")
    store = s3.open(url, endpoint=proxy.endpoint)
    listing = store.list("l")
    first = next(listing)
    proxy.plan(Fault.RESET, times=2)
    assert [first.path, *(info.path for info in listing)] == names


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.RESET, Fault.SILENT])
def test_tries_and_pauses_are_bounded_and_random(s3: S3, proxy: FaultProxy, fault: Fault) -> None:
    pauses: list[float] = []
    retrying = Retrying(tries=5, base=1.0, cap=3.0, sleep=pauses.append, chance=lambda: 0.5)
    store = s3.open(s3.bucket(), endpoint=proxy.endpoint, retrying=retrying, read_timeout="200ms")
    proxy.plan(fault, times=100)
    with pytest.raises(ObjectStoreUnavailableError, match="t/o"):
        store.get("t/o")
    assert len(proxy.seen) == 5
    assert pauses == [0.5, 1.0, 1.5, 1.5]


def test_what_would_be_refused_again_is_not_repeated(store: ObjectStorage, proxy: FaultProxy) -> None:
    proxy.plan(Fault.FORBIDDEN)
    with pytest.raises(ObjectAccessError, match="t/o"):
        store.get("t/o")
    assert len(proxy.seen) == 1
    with pytest.raises(ObjectMissingError):
        store.get("nothing")


def test_a_short_answer_is_no_answer(store: ObjectStorage, proxy: FaultProxy) -> None:
    proxy.plan(Fault.SHORT, times=100, method="GET")
    with pytest.raises((ObjectTruncatedError, ObjectStoreUnavailableError)):
        store.get_range("t/o", 0, 1000)
    with pytest.raises((ObjectTruncatedError, ObjectStoreUnavailableError)):
        store.reader("t/o").read()


def test_a_missing_bucket_is_no_missing_object(s3: S3) -> None:
    """Otherwise every block of a misspelt bucket would be put into quarantine as lost."""
    store = s3.open("s3://no-such-bucket")
    for call in (store.get, store.head, store.reader, lambda path: store.get_range(path, 0, 1)):
        with pytest.raises(ObjectAccessError, match="bucket"):
            call("t/o")
    with pytest.raises(ObjectError) as caught:
        list(store.list())
    assert not isinstance(caught.value, ObjectMissingError)
    with pytest.raises(ObjectAccessError):
        store.put("t/o", b"x")


def test_nothing_secret_is_said(s3: S3, store: ObjectStorage, proxy: FaultProxy) -> None:
    secrets = {s3.gateway.secret_key, s3.gateway.access_key}
    said = [repr(store), repr(s3.gateway)]
    wrong = s3.open(s3.bucket(), secret_access_key="wrong-but-secret")
    secrets.add("wrong-but-secret")
    for call in (
        lambda: wrong.get("o"),
        lambda: wrong.put("o", b""),
        lambda: list(wrong.list()),
        lambda: store.get("t/o"),
    ):
        proxy.plan(Fault.FORBIDDEN)
        with pytest.raises(ObjectAccessError) as caught:
            call()
        said += traceback.format_exception(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert wrong.delete(["o"])[0][1].reason
    said.append(repr(wrong.delete(["o"])))
    text = "".join(said).replace(repr(s3.gateway), "")
    assert not [secret for secret in secrets if secret in text]


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("http://host/x", {}, "no such kind"),
        ("ftp://host/x", {}, "no such kind"),
        ("s3://key:hush-hush@bucket/x", {}, "no credentials"),
        ("s3://bucket/x?token=hush-hush", {}, "nothing else"),
        ("s3://", {}, "nothing else"),
        ("s3://bucket", {"acces_key_id": "hush-hush"}, "'acces_key_id'"),
        ("s3://bucket", {"read_timeout": "hush-hush"}, "the value of option 'read_timeout' cannot be used"),
        ("s3://bucket", {"access_key_id": "hush-hush"}, "do not fit together: Missing SecretAccessKey"),
        ("s3://bucket", {"root_certificate": "hush-hush"}, "'root_certificate' holds no certificates in PEM"),
        ("s3://bucket", {"proxy_url": "::hush-hush"}, "do not fit together: RelativeUrlWithoutBase"),
        ("az://container", {}, "do not fit together: Account must be specified"),
        ("gs://bucket", {"service_account_key": '{"hush-hush": 1}'}, "missing field `private_key`"),
        ("/tmp", {"hush-hush": "x"}, "no options"),
        ("file://host/x", {}, "file:///"),
        ("/dev/null/x", {}, "cannot be used"),
    ],
)
def test_unusable_urls_and_options_are_named_without_their_values(url: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(ObjectStoreUrlError, match=says) as caught:
        open_objects(url, options=options)
    assert "hush-hush" not in "".join(traceback.format_exception(caught.value))


def test_a_folder_that_cannot_be_written_says_so_at_once(tmp_path: Path) -> None:
    pauses: list[float] = []
    store = open_objects(f"file://{tmp_path}", retrying=Retrying(sleep=pauses.append))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ObjectError, match="file/o"):
        store.put("file/o", b"x")
    with pytest.raises(ObjectRefusedError, match="cannot be read"):
        store.put("o", tmp_path / "nothing", if_absent=True)
    assert pauses == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Received redirect without LOCATION, this normally indicates an incorrectly configured region", ""),
        (
            "400: <Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>",
            ", which is in eu-west-1",
        ),
        ("400: <Error><Code>IllegalLocationConstraintException</Code></Error>", ""),
    ],
)
def test_a_wrong_region_is_called_one(text: str, place: str) -> None:
    """It passes by no repetition, and is neither the keys' nor the network's fault."""
    found = translate(GenericError(text), "a", Store.REMOTE)
    assert isinstance(found, ObjectAccessError)
    assert found.reason == f"the region is not that of the bucket{place}"
