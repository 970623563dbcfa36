"""`make manifests` and `make check`: write the generated files of a checkout, or say which differ."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compaction.errors import CompactionError
from tools.shipped import definition_files, drifted, obsolete_definitions, shipped_files, write_files


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 when files differ or cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m tools.shipped", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", metavar="ROOT", type=Path, help="write those that differ into the checkout ROOT")
    action.add_argument("--check", metavar="ROOT", type=Path, help="fail when those in the checkout ROOT differ")
    given = parser.parse_args(arguments)
    try:
        if given.write is not None:
            for path in obsolete_definitions(given.write):
                (given.write / path).unlink()
                print(f"removed {path}: the resource does not exist any more")
            # The definitions first: install.yaml is rendered from the files as they lie there.
            for files in (definition_files(), shipped_files()):
                for path in write_files(given.write, files):
                    print(f"wrote {path}")
        elif different := _different(given.check):
            print(f"error: out of date: {', '.join(map(str, different))}; run `make manifests`")
            return 1
    except (CompactionError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _different(root: Path) -> list[Path]:
    # install.yaml cannot be rendered without the definitions: while these differ, they are what is named.
    return [*obsolete_definitions(root), *drifted(root, definition_files())] or drifted(root, shipped_files())


if __name__ == "__main__":
    sys.exit(main())
