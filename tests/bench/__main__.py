"""`make bench`: runs the benchmarks named (all, when none is) and prints what each round came to.

    python -m bench [--write] [name ...]

Nothing is written, unless `--write` asks for the figures to be put into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from bench.harness import Machine, Result, Size, Workspace, run_benchmark, table
from compaction.kube.logging import LogFormat, setup_logging
from compaction.local.cluster.control_plane import RunningControlPlane, start_control_plane
from compaction.local.programs.binaries import ensure_binaries
from support.clocks import TIMEOUT_FLAG

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "benchmarks.md"
CRDS = HERE.parents[1] / "crds"
BY_NAME_ONLY = ("fleet",)
"""Takes longer than all others together (`make bench-fleet`)."""
NOT_BENCHMARKS = ("harness", "copier", "__main__", "__init__")


def benchmark_names() -> list[str]:
    """Every benchmark there is."""
    modules = (path.stem for path in sorted(HERE.glob("*.py")))
    return [name for name in modules if name not in NOT_BENCHMARKS and not name.startswith("test_")]


def main(arguments: list[str]) -> int:
    """Exit code 0 when everything ran; targets that were not met are said, not punished."""
    parser = argparse.ArgumentParser(prog="bench", description="Ours beside a rival, interleaved.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(benchmark_names())}")
    parser.add_argument("--size", choices=list(Size), default=Size.FULL, type=Size)
    parser.add_argument("--sizes", type=_sizes, default=(), metavar="N,N", help="sizes instead of its own")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="figures whose titles hold a text")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(benchmark_names()):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(benchmark_names())}")
    names = options.names or [name for name in benchmark_names() if name not in BY_NAME_ONLY]
    if len(names) > 1:  # each in a process of its own: a fork of one that has grown would inherit its peak memory
        command = [sys.executable, "-m", "bench", "--size", options.size, *(["--write"] if options.write else [])]
        return max(subprocess.call([*command, name]) for name in names)
    (name,) = names
    setup_logging(LogFormat.TEXT, level=logging.WARNING)
    machine = Machine()
    print("\n".join((*machine.lines, name)), flush=True)
    with ExitStack() as resources:
        results = list(_run(name, resources, options))
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text(), name, machine, results))
    return 0


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _run(name: str, resources: ExitStack, options: argparse.Namespace) -> Iterator[Result]:
    @cache
    def control_plane() -> RunningControlPlane:
        directory = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="compactor-bench-plane-")))
        binaries = ensure_binaries()
        running = resources.enter_context(start_control_plane(directory, binaries, audit=True))
        kubectl = [str(binaries.kubectl), f"--kubeconfig={running.kubeconfig}"]
        for command in (["apply", "--server-side"], ["wait", "--for=condition=Established", TIMEOUT_FLAG]):
            subprocess.run([*kubectl, *command, "-f", str(CRDS)], check=True, stdout=subprocess.DEVNULL)
        return running

    with tempfile.TemporaryDirectory(prefix=f"compactor-bench-{name}-") as directory:
        workspace = Workspace(Path(directory), options.size, control_plane, options.sizes, tuple(options.only))
        yield from run_benchmark(
            importlib.import_module(f"bench.{name}"), workspace, lambda line: print(line, flush=True)
        )


def with_table(page: str, name: str, machine: Machine, results: list[Result]) -> str:
    """The page with the figures between `<!-- figures: NAME -->` and `<!-- end -->` replaced; ValueError without."""
    begin, end = f"<!-- figures: {name} -->", "<!-- end -->"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{PAGE.name} has no place for figures of {name}: {begin} ... {end}")
    return f"{head}{begin}\n{'; '.join(machine.lines)}\n\n{table(results)}\n{end}{tail}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
