"""``python -m tests.fuzz N [--seed S] [--all-laws] [--planted] [--x64]``: check N random programs, from seed S on."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter

os.environ.setdefault("JAX_PLATFORMS", "cpu")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("count", type=int, help="how many programs")
    parser.add_argument("--seed", type=int, default=None, help="the seed of the first one (default: a random one)")
    parser.add_argument("--no-shrink", action="store_true", help="report programs as they were generated")
    parser.add_argument("--all-laws", action="store_true", help="hold each to every law, also compiled (slow)")
    parser.add_argument("--planted", action="store_true", help="plant a nan in each, and look for it")
    parser.add_argument("--x64", action="store_true", help="with 64 bits, as jax_enable_x64 has it")
    given = parser.parse_args()

    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_traceback_filtering", "off")  # whose fault an error is, its last frame tells
    if given.x64:
        jax.config.update("jax_enable_x64", True)

    from tests.fuzz.runner import fuzz

    first = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    print(f"JAX {jax.__version__}: {given.count} programs, seeds {first} to {first + given.count - 1}", flush=True)
    if given.planted:
        return _plant(given.count, first)
    options = {"shrinking": not given.no_shrink, "thorough": given.all_laws}
    failures = fuzz(given.count, first, report=lambda text: print(text, flush=True), **options)
    print(f"JAX {jax.__version__}: {given.count} programs, {len(failures)} broke a law")
    return 1 if failures else 0


def _plant(count: int, first: int) -> int:
    import jax

    from tests.fuzz import planted
    from tests.fuzz.compare import Broken

    found: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            found[planted.check(seed) or "without a place for it"] += 1
        except Broken as error:
            found["broken"] += 1
            print(f"seed {seed}: {error}", flush=True)
        if seed % 100 == 0:
            jax.clear_caches()
    print(f"JAX {jax.__version__}: {dict(found)}")
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
