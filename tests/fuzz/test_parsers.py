"""Any bytes end in a named error or a correct result, in memory bounded by their size (targets: fuzz/targets.py)."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.segments.commit import fence
from compaction.segments.errors import CorruptFenceError
from compaction.segments.reading.reader import CHUNK_BYTES
from fuzz.object_targets import BOMB, MERGE_BOMB, POLICY
from fuzz.target import Target, mutated
from fuzz.targets import TARGETS
from support.timing import examples

PER_BYTE = 200
"""Bytes of memory that one byte of input may cost at most: an empty list of one byte takes 64."""
FIXED = (4 << 20) + 2 * CHUNK_BYTES


REGRESSIONS = (
    ("annotations", b"9" * 5000),
    ("annotations", b"101"),
    ("values", b"0001-01-01T00:00:00+23:59"),
    ("values", b"0900-01-01T00:00:00Z"),
    ("kubeconfig", b"("),
    ("kubeconfig", b"!!float"),
    ("local-state", b"[" * 3000),
    ("local-state", b'{"version":1,"url":"","kubeconfig":"","processes":[{"name":"","pid":1e999,"started":""}]}'),
    ("worker-record", b"[]"),
    ("manifest", b"&a [*a]"),
    ("manifest", b"a: 2001-99-99"),
    ("manifest", b"? {a: b}\n: c"),
    ("manifest", b"{a: " * 3000),
    ("manifest", b"!!set t"),
    ("manifest", POLICY.replace(b"logs", b"0x" + b"f" * 9000)),
    ("names", b"\x80\x00" * 3000),
    ("record-lines", b'{"key": "Yg==", "\\u0000identity": "AAE="}'),
    ("record-lines", b'{"key": "Yg==", "' + b"x" * 9000 + b'": ""}'),
    ("record-properties", b'{"properties": {"\\u0000tBase64": "="}}'),
    ("history", b'{"op": "' + b"x" * 9000 + b'"}'),
)
"""What fuzzing found: a line for each crash that `make fuzz` prints."""


@pytest.mark.parametrize(("name", "data"), REGRESSIONS, ids=[name for name, _ in REGRESSIONS])
def test_what_was_found_once_stays_repaired(name: str, data: bytes, tmp_path: Path) -> None:
    (target,) = [target for target in TARGETS if target.name == name]
    target.run(data, tmp_path)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_seeds_themselves_are_taken(target: Target, tmp_path: Path) -> None:
    """Each seed as it is; and every cut of the shortest one."""
    for number, seed in enumerate(target.seeds):
        run(target, seed, tmp_path / str(number))
    shortest = min(target.seeds, key=len)
    for size in range(min(len(shortest), 400)):
        run(target, shortest[:size], tmp_path / f"cut-{size}")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_hostile_bytes_end_in_a_named_error_or_a_correct_result(target: Target) -> None:
    @settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
    @given(mutated(target))
    def check(data: bytes) -> None:
        with TemporaryDirectory(prefix="fuzz-") as directory:
            target.run(data, Path(directory))

    check()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_memory_is_bounded_by_the_input(target: Target) -> None:
    """No claim of the bytes (a length, a count, a nesting) is believed before the bytes are there."""

    @settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
    @given(mutated(target) | st.sampled_from(target.seeds))
    def check(data: bytes) -> None:
        with TemporaryDirectory(prefix="fuzz-") as directory:
            tracemalloc.start()
            try:
                target.run(data, Path(directory))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert peak <= FIXED + PER_BYTE * len(data)

    check()


def run(target: Target, data: bytes, directory: Path) -> None:
    directory.mkdir()
    target.run(data, directory)


# Small files that ask for much: memory is measured from outside, because validation in native code is not traced.

ALLOWED = 48 << 20
_MEASURE = """
import resource, sys
from pathlib import Path
from compaction.errors import CompactionError
{imports}
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
path = Path(sys.argv[1])
before = peak()
try:
    {call}
except CompactionError as error:
    refusal = str(error)
    assert len(refusal) < 2000, len(refusal)
else:
    sys.exit("taken")
print(peak() - before)
"""


def memory_of_refusal(path: Path, *, imports: str, call: str) -> int:
    """Bytes by which a fresh process grows while `call` refuses the file `path`."""
    code = _MEASURE.format(imports=imports, call=call)
    answer = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return int(answer.stdout)


FENCES = {
    "receipts": b'{"receipts":[' + b"0," * (1 << 20) + b"0]}",
    "intents": b'{"intents":[' + b"{}," * (1 << 20) + b"{}]}",
    "tombstones": b'{"tombstones":[' + b"{}," * (1 << 20) + b"{}]}",
    "jobs": b'{"jobs":{' + b",".join(b'"%d":0' % i for i in range(1 << 18)) + b"}}",
    "nesting": b"[" * (1 << 20),
    "number": b'{"version":' + b"9" * (1 << 20) + b"}",
}


@pytest.mark.parametrize("name", FENCES)
def test_a_fence_of_errors_costs_no_more_than_its_first(tmp_path: Path, name: str) -> None:
    """3 MiB of bad items once became an error each, of 2 GB together."""
    path = tmp_path / fence.FENCE_FILE
    path.write_bytes(FENCES[name])
    imports, call = "from compaction.segments.commit import fence", "fence.read(path.parent)"
    assert memory_of_refusal(path, imports=imports, call=call) < ALLOWED


def test_a_fence_with_a_page_for_a_name_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / fence.FENCE_FILE).write_bytes(b'{"jobs":{"' + b"\\u001b[2Ja" * 100_000 + b'":5}}')
    with pytest.raises(CorruptFenceError) as refusal:
        fence.read(tmp_path)
    text = str(refusal.value)
    assert len(text) < 1500
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


@pytest.mark.parametrize("bomb", [BOMB, MERGE_BOMB], ids=["aliases", "merges"])
def test_a_bomb_of_aliases_is_not_unfolded(tmp_path: Path, bomb: bytes) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(bomb)
    imports, call = (
        "from compaction.cli.local.policy_file import load_policies",
        "load_policies(path.read_text(), source='p')",
    )
    assert memory_of_refusal(path, imports=imports, call=call) < ALLOWED
