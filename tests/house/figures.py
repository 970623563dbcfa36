"""Figures of the package that say whether its chapters are worth reading, and what each may be at most or at least.

A figure may only get better: `figures.toml` holds what was reached. `make figures` prints them,
`make figures ARGS=--write` records those that got better.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from house.sources import PACKAGE, Module, read_modules

RECORD: Final = Path(__file__).with_name("figures.toml")
HEADER: Final = "# The best that each figure was (house/figures.py); written by `make figures ARGS=--write`."
SHORTEST: Final = 60
"""Code lines below which a module is a note, not a chapter; frameworks want some (`__main__`, migrations)."""
LONGEST: Final = 600
AT_LEAST: Final = frozenset({"median_module", "comments_per_100_branches"})
"""Figures that are good when they are high; all others are good when they are low."""
FREE: Final = frozenset({"code_lines", "modules"})
"""Figures that grow with what the package does; they are only printed."""
NOISE: Final = 0.01
"""A figure may be worse than its record by this share: a private function more or less says nothing."""
SLACK: Final = 0.03
"""A figure that is better than its record by more than this share is recorded with the change that made it better."""
_WH: Final = re.compile(r"(What|Whether|How|Where|When|Who|Which|Why|That)\b")
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCHES: Final = ast.If | ast.For | ast.While | ast.Try | ast.With | ast.IfExp


def figures_of(modules: Iterable[Module]) -> dict[str, float]:
    """By name. Code lines are neither blank nor comment nor docstring."""
    totals: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    names: Counter[tuple[str, str]] = Counter()
    chapters: list[int] = []
    importers: defaultdict[str, set[str]] = defaultdict(set)
    every = list(modules)
    known = {module.name for module in every}
    for module in every:
        found, defined = _counts(module.text)
        totals += found
        classes.update(defined)
        parts = module.path.relative_to(PACKAGE).parts
        if parts[-1] != "__init__.py":
            names[parts[0], parts[-1]] += 1
            if found["code"]:
                chapters.append(found["code"])
        for name in module.imports & known:
            importers[name].add(module.name)
    outside = {name for name, those in importers.items() if any(_package(item) != _package(name) for item in those)}
    return {
        "code_lines": totals["code"],
        "modules": len(chapters),
        "median_module": statistics.median(chapters),
        "modules_too_short": sum(count < SHORTEST for count in chapters),
        "modules_too_long": sum(count > LONGEST for count in chapters),
        # Of the modules, as their number grows with what the package does.
        "one_importer_percent": round(100 * sum(len(those) == 1 for those in importers.values()) / len(chapters), 1),
        "imported_from_outside_percent": round(100 * len(outside) / len(chapters), 1),
        "module_names_twice": sum(count for count in names.values() if count > 1),
        "class_names_twice": sum(count > 1 for count in classes.values()),
        "import_percent": round(100 * totals["import lines"] / totals["code"], 1),
        "private_used_once_percent": round(100 * totals["private used once"] / max(totals["private"], 1), 1),
        "docstrings_by_question_percent": round(100 * totals["by question"] / totals["docstrings"], 1),
        "named_one_per_10000": round(10_000 * totals["named one"] / totals["names"], 1),
        "comments_per_100_branches": round(100 * totals["comments"] / totals["branches"], 1),
    }


def _package(module: str) -> str:
    return module.rpartition(".")[0]


def _counts(text: str) -> tuple[Counter[str], list[str]]:
    """What one module adds to the totals, and its public classes. In one walk, which is most of what this takes."""
    tree = ast.parse(text)
    found: Counter[str] = Counter()
    documented: set[int] = set()
    private: set[str] = set()
    used: Counter[str] = Counter()
    classes: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
        elif isinstance(node, ast.arg):
            found["arguments"] += 1
            found["named one"] += node.arg == "one"
        elif isinstance(node, _BRANCHES):
            found["branches"] += 1
        elif isinstance(node, ast.Module | ast.ClassDef | _FUNCTIONS):
            function = isinstance(node, _FUNCTIONS)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.append(node.name)
            elif isinstance(node, _FUNCTIONS) and node.name.startswith("_") and not node.name.startswith("__"):
                private.add(node.name)
                found["private"] += 1
            if (said := ast.get_docstring(node, clean=False)) is not None:
                documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
                found["docstrings"] += function
                found["by question"] += function and _WH.match(said) is not None
    found["named one"] += used["one"]
    found["names"] = used.total() + found["arguments"]
    found["private used once"] = sum(used[name] == 1 for name in private)
    imports = (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    found["import lines"] = sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)
    lines = enumerate(text.splitlines(), 1)
    found["code"] = sum(number not in documented and line.strip()[:1] not in ("", "#") for number, line in lines)
    # Most modules have no comment, and to take all tokens apart takes as long as everything else.
    if "#" in text:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found["comments"] = sum(token.type == tokenize.COMMENT for token in tokens)
    return found, classes


def read_record(path: Path = RECORD) -> dict[str, float]:
    """What was reached."""
    found: dict[str, float] = tomllib.loads(path.read_text())["reached"]
    return found


def worse(now: Mapping[str, float], record: Mapping[str, float]) -> list[str]:
    """Figures that got worse, as sentences."""
    return [
        f"{name} is {now[name]:g}, {'at least' if name in AT_LEAST else 'at most'} {limit:g} was reached"
        for name, limit in record.items()
        if (now[name] < limit * (1 - NOISE) if name in AT_LEAST else now[name] > limit * (1 + NOISE))
    ]


def unrecorded(now: Mapping[str, float], record: Mapping[str, float]) -> list[str]:
    """Figures that are so much better that they must not fall back to their record."""
    return [
        f"{name} is {now[name]:g}, {limit:g} is recorded"
        for name, limit in record.items()
        if (now[name] > limit * (1 + SLACK) if name in AT_LEAST else now[name] < limit * (1 - SLACK))
    ]


def main(arguments: list[str]) -> int:
    """Print the figures, and write those that got better; 1 when one got worse."""
    now, record = figures_of(read_modules()), read_record() if RECORD.exists() else {}
    for name, value in now.items():
        limit = "" if name in FREE else f"{'at least' if name in AT_LEAST else 'at most'} {record.get(name, value):g}"
        print(f"{name:32} {value:>9g}   {limit}".rstrip())
    bad = worse(now, record)
    print(*bad, sep="\n")
    if "--write" in arguments and not bad:
        better = {
            name: (max if name in AT_LEAST else min)(value, record.get(name, value))
            for name, value in now.items()
            if name not in FREE
        }
        text = "\n".join(f"{name} = {value:g}" for name, value in better.items())
        RECORD.write_text(f"{HEADER}\n[reached]\n{text}\n")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
