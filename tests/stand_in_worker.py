"""A worker process with a stand-in engine: `sparkle worker` in all but the model. Run as a program."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from sparkle.errors import SparkleError
from sparkle.queue.key_ring import EncryptionSettings
from sparkle.quiet.process import keep_content_in
from sparkle.workers.assembly import run_worker
from sparkle.workers.lifecycle import LifeCycle, exit_code
from sparkle.workers.settings import WorkerSettings
from tests.engine_stand_in import StandInEngine


async def main() -> None:
    """Be the worker until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nats", required=True)
    parser.add_argument("--region", default="local")
    parser.add_argument("--name", default="")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--drain-s", type=float, default=60.0)
    parser.add_argument("--pass-limit-s", type=float, default=60.0)
    parser.add_argument("--follow-up-wait-ms", type=float, default=200.0)
    parser.add_argument("--keys-file", type=Path)
    arguments = parser.parse_args()
    life = LifeCycle()
    life.watch_signals(asyncio.get_running_loop())
    settings = WorkerSettings(
        region=arguments.region,
        nats=arguments.nats,
        name=arguments.name,
        drain_s=arguments.drain_s,
        pass_limit_s=arguments.pass_limit_s,
        follow_up_wait_ms=arguments.follow_up_wait_ms,
        encryption=EncryptionSettings(keys_file=arguments.keys_file),
    )
    await run_worker(settings, StandInEngine(slots=arguments.slots), life)


if __name__ == "__main__":
    keep_content_in()
    try:
        asyncio.run(main())
    except SparkleError as error:
        print(error, file=sys.stderr)  # noqa: T201 - what `sparkle worker` says as well
        sys.exit(exit_code(error))
