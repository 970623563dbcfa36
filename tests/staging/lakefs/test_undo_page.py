"""The program of docs/staging.md that puts old tokens back works as it is written."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.lakefs.cleaning import check_undo
from compaction.staging.lakefs.control import TokenMergeSettings
from compaction.staging.lakefs.merging import MergeEnd, merge_branch
from compaction.staging.lakefs.repository import open_live_repository
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from support.cluster.control_plane import ROOT
from support.staging.lakefs_server import LakeFsServer
from support.staging.staging_repos import SMALL_RANGES, TestClock

PAGE = (ROOT / "docs" / "staging.md").read_text()


def test_old_tokens_are_put_back(
    kv: SqlKeyValueStore, kv_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = (tmp_path / "objects").as_uri()
    ranges = RangeStorage(open_objects(namespace), rule=SMALL_RANGES)
    server = LakeFsServer(kv, ranges).create({"a": "committed"}, namespace=namespace)
    old = server.put_sealed({"a": "one"}, {"b": "two"}, {"a": None})
    before, clock = server.listed(), TestClock()
    live = open_live_repository(kv, server.name, ranges=ranges, clock=clock.time, sleep=clock.sleep)
    assert merge_branch(live, "main", TokenMergeSettings(quiet=0, yields=0)).end is MergeEnd.MERGED
    (check,) = check_undo(live, "main")
    assert check.possible
    assert server.branch().sealed_tokens != old
    one = {"branch": "main", "fresh": check.fresh, "oldTokens": list(check.tokens), "possible": True}
    (program,) = re.findall(r"```python\n(# compactor staging lakefs verify.*?)```", PAGE, re.DOTALL)
    (tmp_path / "options.yaml").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPACTION_KV_URL", kv_url)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"repository": server.name, "items": [one]})))
    namespace_of_program: dict[str, object] = {}
    exec(compile(program + "\nkv.close()", "docs/staging.md", "exec"), namespace_of_program)
    assert tuple(server.branch().sealed_tokens) == tuple(old)
    assert server.listed() == before
