"""The long run: `python -m tests.fuzz --frames 10000000`: damaged frames at the codec, then well-made hostile requests
at the handlers of a live broker. Ends with 1 and the frame or the request at the first breach.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from service.broker.loop_watch import HELD_MS
from tests.fuzz.codec import GROWTH_MAX_BYTES, Judge, frames, resident_max_bytes
from tests.fuzz.handlers import Siege
from tests.fuzz.mutation import Target, mutants
from tests.service.wire.making import ALL

ROUND = 200_000  # frames between reports and looks at the memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=20_000, help="at a live broker")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", flush=True)
    return feed_the_codec(seed, options.frames) or besiege(seed, options.requests)


def besiege(seed: int, requests: int) -> int:
    if not requests:
        return 0
    with tempfile.TemporaryDirectory() as folder, Siege(Path(folder)) as siege:
        try:
            siege.attack(seed, requests, many=200)
            siege.judge()
            longest_ms = siege.longest_turn_ms()
            print(f"{siege.asked.total():,} requests at a live broker, longest turn {longest_ms} ms of computing")
            assert longest_ms <= HELD_MS, "the loop was held"
        except AssertionError as breach:
            print(f"seed {seed}: {breach}", file=sys.stderr)
            return 1
    return 0


def feed_the_codec(seed: int, frame_count: int) -> int:
    judge = Judge()
    warm_up(judge)
    base = resident_max_bytes()
    start = time.monotonic()
    done = 0
    while done < frame_count:
        count = min(ROUND, frame_count - done)
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
