"""Fuzzing guided by coverage: `make fuzz` (T=seconds per target, ARGS="fence manifest" selects some).

Each target runs in a process of its own, with a limit on its memory and on each input's time; the corpus grows from the
seeds in a temporary folder. A crash ends its target and prints the input as a line for REGRESSIONS in test_parsers.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MEMORY_MIB = 1024
INPUT_SECONDS = 30
LONGEST_INPUT = 1 << 16
CROWD = "million-files"


def main() -> int:
    """Run the targets one after the other; 1 when any found something."""
    from fuzz.segment_targets import ALLOWED_KIB, memory_of_a_look
    from fuzz.targets import TARGETS

    names = [*(target.name for target in TARGETS), CROWD]
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(names)}; all when none is given")
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument("--corpus", type=Path, help="keeps what was found interesting (default: a temporary folder)")
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - set(names)):
        parser.error(f"no target {', '.join(unknown)}: there are {', '.join(names)}")
    found = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        for name in [target for target in options.targets or names if target != CROWD]:
            corpus = (options.corpus or Path(temporary)) / name
            print(f"{name}: {options.seconds} s", flush=True)
            if not fuzz_in_child(name, corpus, seconds=options.seconds):
                found.append(name)
        if CROWD in (options.targets or [CROWD]):
            used = memory_of_a_look(Path(temporary) / CROWD, files=1_000_000)
            print(f"{CROWD}: a look at a directory of them takes {used} KiB", flush=True)
            found += [CROWD] if used >= ALLOWED_KIB else []
    print(f"found something: {', '.join(found)}" if found else "nothing found")
    return 1 if found else 0


def fuzz_in_child(name: str, corpus: Path, *, seconds: int) -> bool:
    """Whether the target stood for so long. What libFuzzer prints is shown when it did not."""
    corpus.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={INPUT_SECONDS}"]
    with tempfile.TemporaryDirectory(prefix="fuzz-run-") as scratch:
        command = [sys.executable, "-m", "fuzz", "--guided", name, str(corpus), *limits, f"-max_len={LONGEST_INPUT}"]
        answer = subprocess.run(
            [*command, f"-artifact_prefix={scratch}/", "-print_final_stats=1"],
            env={**os.environ, "TMPDIR": scratch},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        text = answer.stdout.decode(errors="replace")
        if answer.returncode == 0:
            runs = [line for line in text.splitlines() if "number_of_executed_units" in line]
            print("  " + (runs[-1].strip() if runs else "no figures"), flush=True)
            return True
        print("\n".join(line for line in text.splitlines() if not line.startswith(("INFO:", "WARNING:")))[-6000:])
        for artifact in sorted(Path(scratch).glob("*-*")):
            if artifact.is_file():
                print(f"add to REGRESSIONS in tests/fuzz/test_parsers.py:\n    ({name!r}, {artifact.read_bytes()!r}),")
    return False


def guided(name: str, arguments: list[str]) -> None:
    """The child: never returns, libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["compaction", "fuzz"], enable_loader_override=False):
        from fuzz.targets import TARGETS
    (target,) = [target for target in TARGETS if target.name == name]
    corpus, words = Path(arguments[0]), Path(tempfile.mkdtemp(prefix="words-")) / "words"
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    quoted = ("".join(f"\\x{byte:02x}" for byte in token) for token in target.tokens if len(token) <= 64)
    words.write_text("".join(f'"{token}"\n' for token in (*quoted, "\\x00")))
    scratch = Path(tempfile.mkdtemp(prefix="input-"))

    def once(data: bytes) -> None:
        target.run(data, scratch)
        for path in scratch.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    atheris.Setup([sys.argv[0], *arguments, f"-dict={words}"], once)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--guided"]:
        guided(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
