"""Small files that ask for much: memory is measured from outside, because validation in native code is not traced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compaction.segments.commit import fence
from compaction.segments.errors import CorruptFenceError
from fuzz.object_targets import BOMB, MERGE_BOMB

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
