"""How many pieces of content any process leaves behind over whole scenarios: none is the only good figure.

Run from the repository's root: python -m bench.canary_hits
"""

from __future__ import annotations

import argparse
import asyncio
import logging

from bench.record import record
from tests.canaries import Canaries
from tests.kept_scenarios import run_scenarios
from tests.kept_site import Site


async def hits() -> list[str]:
    """Every place with content in it."""
    canaries = Canaries()
    async with Site() as site:
        outcomes = await run_scenarios(site, canaries)
        print(f"{len(outcomes)} scenarios: {', '.join(f'{name} {end}' for name, end in outcomes.items())}")
        return site.search(canaries)


def main() -> None:
    """Run, print, and with --record keep the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="append a row to bench/results")
    keep: bool = parser.parse_args().record
    logging.getLogger("sparkle").setLevel(logging.DEBUG)
    found = asyncio.run(hits())
    for hit in found:
        print(hit)
    print(f"{len(found)} hits")
    if keep:
        record("canary_hits", len(found), "places", 0.0, (len(found), len(found)), file="kept")


if __name__ == "__main__":
    main()
