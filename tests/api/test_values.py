"""Durations, quantities and times: what is read, what is refused, and that writing gives back what was read."""

from __future__ import annotations

import os
import pickle
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity
from pydantic import TypeAdapter, ValidationError

from compaction.api.base import Timestamp, format_timestamp, timestamp_from_epoch
from compaction.api.policy.policy_spec import Cron
from compaction.api.text.printing import REDACTED, format_age, format_bytes, format_work, plural, printable, redacted
from compaction.api.text.quantities import MAX_QUANTITY, Duration, Quantity

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
parts = st.tuples(st.integers(0, 99999), st.sampled_from(sorted(UNITS)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("30s", 30),
        ("1m30s", 90),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("2h0m0s", 7200),
        ("90d", 7776000),
        ("1d12h", 129600),
    ],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert Duration(text) == seconds
    assert str(Duration(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "5",
        "s",
        "1 m",
        "-1s",
        "+1s",
        "d",
        "1.5d",
        "1h1d",
        "1d1d",
        "99999d",
        "1M",
        "1e3s",
        ".5s",
        "1.s",
        "1s ",
        "\n1s",
        "1s\n",
        "٣s",
        "9" * 7 + "s",
    ],
)
def test_other_durations_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write a duration such as 30s, 10m, 1h30m or 90d"):
        Duration(text)


@given(st.lists(parts, min_size=1, max_size=3))
def test_a_duration_is_the_sum_of_its_parts(written: list[tuple[int, str]]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in written)
    if len(text) <= 20:
        assert Duration(text) == pytest.approx(sum(count * UNITS[unit] for count, unit in written))


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("512", 512), ("64M", 64_000_000), ("64Mi", 1 << 26), ("1.5Gi", 3 << 29), ("1k", 1000), ("0.5", 1)],
)
def test_quantities_are_bytes_rounded_up(text: str, count: int) -> None:
    assert Quantity(text) == count


@pytest.mark.parametrize(
    "text", ["", "-1", "1B", "1MB", "1K", "1kib", "Gi", "1 Gi", "1e3", "1m", "1Ei", "0x10", "1.Gi", "1_000"]
)
def test_other_quantities_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write bytes as a whole number or with a suffix"):
        Quantity(text)


def test_a_quantity_fits_64_bits() -> None:
    assert Quantity("8388607Ti") < MAX_QUANTITY
    with pytest.raises(ValueError, match="more than 64 bits hold"):
        Quantity("8388608Ti")


@given(
    st.decimals(0, 999_999, places=3, allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]),
)
def test_quantities_mean_what_kubernetes_means(number: Decimal, suffix: str) -> None:
    exact = parse_quantity(f"{number}{suffix}")
    assert Decimal(int(Quantity(f"{number}{suffix}"))) - exact < 1
    assert int(Quantity(f"{number}{suffix}")) >= exact


@given(st.integers(0, 10**15 - 1) | st.from_regex(r"[0-9]{1,6}(\.[0-9]{1,3})?(Ki|Mi|M|G)", fullmatch=True))
def test_quantities_are_written_as_they_were_read(written: int | str) -> None:
    adapter = TypeAdapter(Quantity)
    assert adapter.dump_python(adapter.validate_python(written), mode="json") == written


def test_values_survive_pickling_with_their_text() -> None:
    for value in (Duration("1.50h"), Quantity("1.50Gi")):
        copy = pickle.loads(pickle.dumps(value))
        assert (copy, copy.text, type(copy)) == (value, value.text, type(value))


def test_times_are_utc_to_the_second() -> None:
    moment = datetime(2026, 3, 1, 14, 0, 5, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert format_timestamp(moment) == "2026-03-01T12:00:05Z"
    adapter: TypeAdapter[datetime] = TypeAdapter(Timestamp)
    read = adapter.validate_python("2026-03-01T12:00:05.25Z")
    assert read == datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
    assert adapter.dump_python(read, mode="json") == "2026-03-01T12:00:05Z"
    assert timestamp_from_epoch(1_772_366_405.9) == read


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="timezone"):
        TypeAdapter(Timestamp).validate_python("2026-03-01T12:00:05")


# Text from outside, made safe to print.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/ra/log-1", "/data/ra/log-1"),
        ("größe 日本 👩‍💻", "größe 日本 👩‍💻"),
        ("a\nb\tc\x1b[31m\x7f", "a\\nb\\tc\\x1b[31m\\x7f"),
        ("gpj.\u202etxt", "gpj.\\u202etxt"),
        (os.fsdecode(b"log-\xff"), "log-\\xff"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_obeys_is_written_out(text: str, expected: str) -> None:
    assert printable(text) == expected


@given(st.text(alphabet=st.characters()) | st.binary().map(os.fsdecode))
def test_the_result_is_utf8_on_one_line_and_stays_as_it_is(text: str) -> None:
    safe = printable(text)
    assert safe.encode().decode() == safe
    assert len(safe.splitlines()) <= 1
    assert printable(safe) == safe


PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2\nAAAA\n-----END RSA PRIVATE KEY-----"
X = REDACTED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open postgresql://lake:hunter2@db/blocks", f"cannot open postgresql://{X}@db/blocks"),
        ("s3://AKIA:hun/ter2@2@minio:9000/b?x=1", f"s3://{X}@minio:9000/b?x=1"),
        ("https://hunter2@git.example/a", f"https://{X}@git.example/a"),
        ("postgresql://db/blocks?user=a&password=hunter2", f"postgresql://db/blocks?user=a&password={X}"),
        ("FATAL: password='hunter 2' is wrong", f"FATAL: password={X} is wrong"),
        ("env DB_PASSWORD=hunter2 GITHUB_TOKEN=hunter2", f"env DB_PASSWORD={X} GITHUB_TOKEN={X}"),
        ("spark.hadoop.fs.s3a.secret.key=hunter2 is set", f"spark.hadoop.fs.s3a.secret.key={X} is set"),
        ("fs.s3a.access.key = hunter2", f"fs.s3a.access.key = {X}"),
        (
            "fs.azure.account.key.lake.dfs.core.windows.net=hunter2",
            f"fs.azure.account.key.lake.dfs.core.windows.net={X}",
        ),
        ('{"password": "hunter2", "client_secret":"hunter2"}', f'{{"password": {X}, "client_secret":{X}}}'),
        ("password: hunter2", f"password: {X}"),
        ("PUT /b?X-Amz-Credential=hunter2&X-Amz-Signature=hunter2", f"PUT /b?X-Amz-Credential={X}"),
        ("blob?sv=2024&sig=hunter2%3D", f"blob?sv=2024&sig={X}"),
        ("the key AKIAIOSFODNN7EXAMPLE is unknown", f"the key {X} is unknown"),
        ("ASIAIOSFODNN7EXAMPLE", X),
        ("Authorization: Basic aHVudGVyMg==", f"Authorization: {X}"),
        ("sent Bearer hunter2.hunter2-hunter2", f"sent Bearer {X}"),
        ("got eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.hunter2 back", f"got {X} back"),
        (f"before\n{PEM}\nafter", f"before\n{X}\nafter"),
        (PEM.replace("\n", "\\n"), X),
        (f"before {PEM.partition('-----END')[0]}", f"before {X}"),
        (f"MIIEhunter2\n{PEM.partition('AAAA')[2]}\nafter", f"{X}\nafter"),
        ("before\n" + "MIIEhunter2" * 6 + "\nafter", f"before\n{X}\nafter"),
    ],
)
def test_credentials_are_redacted(text: str, expected: str) -> None:
    assert redacted(text) == expected
    assert "hunter2" not in expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        'secret "lake-credentials" not found',
        "fencing token 7 is outdated: token 8 was assigned",
        'serviceaccount "worker" not found: error looking up service account ns/worker',
        "cannot open s3://lake/blocks at https://s3.example:9000/a?b=c",
        "bearer authentication failed",
        "exit code 1: ValueError: no such field",
        "write to someone@example.com",
        "the Secret has no key password: add it",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redacted(text) == text


# Bytes and ages for people.


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1.5Ki"),
        (10_187, "9.9Ki"),
        (10_189, "10Ki"),
        (163 << 20, "163Mi"),
        ((1 << 30) - 1, "1Gi"),
        (3 << 29, "1.5Gi"),
        (1 << 60, "1Ei"),
        (2**63 - 1, "8Ei"),
        (-2048, "-2Ki"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(0, 2**63 - 1))
def test_bytes_are_short_and_close(count: int) -> None:
    text = format_bytes(count)
    number = text.rstrip("KMGTPEi")
    power = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei").index(text[len(number) :])
    assert len(text) <= 6
    assert abs(float(number) * 1024**power - count) <= max(0.06 * count, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m"),
        (130, "2m10s"),
        (599, "9m59s"),
        (601, "10m"),
        (3600, "1h"),
        (11_100, "3h5m"),
        (47 * 3600, "47h"),
        (52 * 3600, "2d4h"),
        (40 * 86_400 + 5, "40d"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


def test_plural() -> None:
    assert [plural(count, "group") for count in (0, 1, 2)] == ["0 groups", "1 group", "2 groups"]


def test_work_says_what_comes_back_where_it_is_known() -> None:
    assert format_work(48 << 20, 149 << 20) == "copy 48Mi, reclaim 149Mi"
    assert format_work(48 << 20, 0) == "copy 48Mi"


# Cron expressions: what the rules let through can be evaluated, and nothing that cannot is let through.

CRON: TypeAdapter[str] = TypeAdapter(Cron)
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


def accepts(text: str) -> bool:
    try:
        CRON.validate_python(text)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("width", [1, 2])
def test_exactly_the_ascending_ranges_are_taken(width: int) -> None:
    for start, end in product(range(60), range(60)):
        text = f"{start:0{width}d}-{end:0{width}d}"
        assert accepts(f"{text} * * * *") is (start <= end), text
        assert accepts(f"0,{text}/5,3 * * * *") is (start <= end), text


@pytest.mark.parametrize(("names", "template"), [(DAYS, "0 0 * * {}"), (MONTHS, "0 0 * {} *")])
def test_exactly_the_ascending_ranges_of_names_are_taken(names: tuple[str, ...], template: str) -> None:
    for (i, start), (j, end) in product(enumerate(names), enumerate(names)):
        assert accepts(template.format(f"{start}-{end.lower()}")) is (i <= j), (start, end)


def _field(low: int, high: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str) | st.integers(low, high).map("{:02d}".format)
    value = number | st.sampled_from(names) if names else number
    item = st.just("*") | value | st.tuples(value, value).map("-".join)
    stepped = item | st.tuples(item, st.integers(1, 99).map(str)).map("/".join)
    return st.lists(stepped, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(
    _field(0, 59), _field(0, 23), _field(1, 31), _field(1, 12, MONTHS), _field(0, 7, DAYS)
).map(" ".join)  # fmt: skip


@given(EXPRESSIONS | st.text("0123456789*/,- JANSU#L?@", max_size=24))
def test_what_is_taken_can_be_evaluated_and_comes(text: str) -> None:
    if accepts(text):
        assert next(CronSim(text, datetime(2026, 1, 1, tzinfo=UTC))) > datetime(2026, 1, 1, tzinfo=UTC)


@given(EXPRESSIONS)
def test_what_can_be_evaluated_is_taken(text: str) -> None:
    try:
        CronSim(text, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError:
        return
    mixed = any(part.count("-") and any(c.isalpha() for c in part) for part in text.replace(" ", ",").split(","))
    assert accepts(text) or mixed or len(text) > 128, "mixed ranges such as MON-5 are refused"
