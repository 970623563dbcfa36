"""Paths as plain text: which directory lies in which. Every reconcile asks this of every job; no file is touched."""

from __future__ import annotations


def first_below(root: str, path: str) -> str:
    """The first directory below `root` on the way to a path; "" for what lies directly in it, or elsewhere."""
    first, slash, _ = (relative_to(root, path) or "").partition("/")
    return first if slash else ""


def relative_to(root: str, path: str) -> str | None:
    """A path as seen from a directory it lies in ("" for that directory itself); None when it lies elsewhere.

    Both are absolute and without `..`. Every reconcile asks this of every job: `pathlib` takes ten times as long.
    """
    root, path = plain_path(root), plain_path(path)
    if path == root:
        return ""
    inside = f"{root.rstrip('/')}/"
    return path[len(inside) :] if path.startswith(inside) else None


def plain_path(path: str) -> str:
    """Without what means nothing: `//`, `/./` and a slash at the end."""
    if "//" in path or "/." in path or path.endswith("/"):
        return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return path
