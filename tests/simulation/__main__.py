"""`make simulate`: N=20000 runs so many schedules (FROM=... begins elsewhere); SEED=... replays one and shrinks it."""

from __future__ import annotations

import argparse
import sys
import time

from simulation.many import run_many, shrink, told, workers
from simulation.mutations import MUTATIONS
from simulation.remembered import remember
from simulation.world import Outcome, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="schedules to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this schedule")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="with this defect built in")
    parser.add_argument("--remember", action="store_true", help="find every defect anew, for the next run of the tests")
    chosen = parser.parse_args()
    if chosen.remember:
        with workers() as pool:
            for what, seeds in remember(pool, schedules=chosen.count):
                print(f"{what}: {', '.join(map(str, seeds)) or 'not found'}", flush=True)
        return 0
    if chosen.seed is not None:
        return _replay(chosen.seed, chosen.mutation)
    return _run(chosen.first, chosen.count, chosen.mutation)


def _run(first: int, count: int, mutation: str | None) -> int:
    started, done = time.monotonic(), 0
    with workers() as pool:
        for seed, violation in run_many(pool, range(first, first + count), mutation=mutation):
            done += 1
            if violation is not None:
                print(f"seed {seed} violates: {violation.invariant}: {violation.message}", flush=True)
                return _replay(seed, mutation)
            if done % 500 == 0:
                print(f"{done} of {count} schedules, nothing found, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{done} schedules from seed {first} on: nothing found, {time.monotonic() - started:.0f} s")
    return 0


def _replay(seed: int, mutation: str | None) -> int:
    if mutation is not None:
        with MUTATIONS[mutation].applied():
            return _tell(simulate(seed))
    return _tell(simulate(seed))


def _tell(outcome: Outcome) -> int:
    if outcome.violation is None:
        print("\n".join(outcome.trace))
        print(f"seed {outcome.seed}: nothing is violated; trace {outcome.digest[:16]}, {outcome.stats}")
        return 0
    print(f"shrinking {len(outcome.struck)} faults ...", flush=True)
    print(told(shrink(outcome)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
