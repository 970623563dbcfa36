"""`make mutate`: puts deliberate defects into copies of the code, one each, and sees that the tests notice every one.

A test that fails must pass on the sound code, which is tried at the end. ARGS="fence sweep" selects by words in the
names, ARGS=--list names all, JOBS=... how many are tried at a time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from mutation.defect import Defect
from mutation.defects import DEFECTS
from mutation.hunt import Found, Verdict, hunt, without_defects

_SHOWN = 40


def main(arguments: Sequence[str] | None = None, *, defects: Sequence[Defect] = DEFECTS) -> int:
    """0 when every defect was noticed; 1 when one survived, or a test that noticed one fails without it."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("words", nargs="*", help="only defects whose names have one of these words")
    parser.add_argument("--jobs", type=int, default=2, help="how many to try at a time")
    parser.add_argument("--list", action="store_true", help="name the defects and what they break, and try none")
    chosen = parser.parse_args(arguments)
    wanted = [defect for defect in defects if not chosen.words or any(word in defect.name for word in chosen.words)]
    if chosen.jobs < 1:
        parser.error("--jobs: at least one at a time")
    if not wanted:
        parser.error(f"no defect's name has any of: {', '.join(chosen.words)}")
    if chosen.list:
        print("\n".join(f"{defect.name} ({defect.file}; docs/{defect.promise})" for defect in wanted))
        return 0
    began = time.monotonic()
    found = []
    for item in hunt(wanted, jobs=chosen.jobs):
        found.append(item)
        print(_line(item), flush=True)
    return _conclude(found, began)


def _line(found: Found) -> str:
    seconds = f"{found.run.seconds:.0f} s"
    match found.verdict:
        case Verdict.KILLED:
            return f"{found.defect.name}: killed by {found.run.failed} after {seconds}"
        case Verdict.SURVIVED:
            return f"{found.defect.name}: SURVIVED {' '.join(found.defect.killers)} ({seconds})"
        case Verdict.BROKEN:
            last = "\n".join(found.run.output.splitlines()[-_SHOWN:])
            return f"{found.defect.name}: BROKEN, pytest ended with code {found.run.code}\n{last}"


def _conclude(found: Sequence[Found], began: float) -> int:
    killers = sorted({str(item.run.failed) for item in found if item.verdict is Verdict.KILLED})
    sound = without_defects([killer.removeprefix("tests/") for killer in killers]) if killers else None
    counts = {verdict: sum(item.verdict is verdict for item in found) for verdict in Verdict}
    if sound is not None and not sound.survived:
        print("\n".join(sound.output.splitlines()[-_SHOWN:]))
        print(f"{sound.failed or 'a test'} fails without any defect: what it killed proves nothing")
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    print(f"{len(found)} defects: {said}; {time.monotonic() - began:.0f} s")
    return int(counts[Verdict.KILLED] < len(found) or (sound is not None and not sound.survived))


if __name__ == "__main__":
    sys.exit(main())
