"""Argo CD's health of our kinds: the script of manifests/examples/argocd, run by its own kind of Lua."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lupa.lua51 import LuaRuntime

from support.cluster.rendered import MANIFESTS

SCRIPT = (MANIFESTS / "examples" / "argocd" / "health.lua").read_text()


def health(found: Mapping[str, Any]) -> tuple[str, str]:
    """(status, message) for an object."""
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    judge = lua.execute(f"return function(obj)\n{SCRIPT}\nend")
    answer = judge(lua.table_from(dict(found), recursive=True))
    return str(answer["status"]), str(answer["message"])
