"""Text from outside, made safe to print."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.text.printing import REDACTED, printable, redacted


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
