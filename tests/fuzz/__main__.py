"""The long run: `python -m tests.fuzz --frames 10000000`. Ends with 1 and the frame at the first breach."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.fuzz.codec import GROWTH_MAX_BYTES, Judge, frames, resident_max_bytes
from tests.fuzz.mutation import Target, mutants
from tests.service.wire.making import ALL

ROUND = 200_000  # frames between reports and looks at the memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", flush=True)
    judge = Judge()
    warm_up(judge)
    base = resident_max_bytes()
    start = time.monotonic()
    done = 0
    while done < options.frames:
        count = min(ROUND, options.frames - done)
        try:
            for frame in frames(seed + done, count):
                judge.see(frame)
                if judge.frames % 16 == 0:
                    judge.see_header(frame.data)
        except AssertionError as breach:
            print(f"after {judge.frames} frames, seed {seed}: {breach}", file=sys.stderr)
            return 1
        done += count
        growth = resident_max_bytes() - base
        took = time.monotonic() - start
        print(
            f"{done:,} frames in {took:.0f} s ({done / took:,.0f} a second), {judge.accepted:,} accepted, "
            f"slowest {judge.slowest_s * 1000:.1f} ms, memory +{growth >> 20} MiB",
            flush=True,
        )
        if growth > GROWTH_MAX_BYTES:
            print(f"memory has grown by {growth >> 20} MiB", file=sys.stderr)
            return 1
    return 0


def warm_up(judge: Judge) -> None:
    """Compiles every codec, so that what memory grows by afterwards is a frame's doing."""
    chance = random.Random(0)
    for name, version in ALL:
        for frame in mutants(chance, Target(name, version), 20):
            judge.see(frame)


if __name__ == "__main__":
    sys.exit(main())
