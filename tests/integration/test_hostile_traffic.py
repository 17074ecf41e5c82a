"""A worker and a client under thousands of hostile messages of every kind: nothing ends, and nobody waits."""

from __future__ import annotations

from pathlib import Path

from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.schemas.export import MESSAGES
from tests.hostile_messages import CANARY
from tests.hostile_seals import Manner, hostile_seals
from tests.hostile_traffic import WORKER, HostileTraffic
from tests.worker_processes import stand_in, worker_process

WAVES, MESSAGES_EACH = 4, 500
SEALED_WAVES = 2


async def test_a_worker_answers_every_valid_id_and_goes_on(
    connection: Connection, nats_server: LocalServer
) -> None:
    async with worker_process(*stand_in(nats_server, "--name", WORKER, "--slots", "8")) as worker:
        traffic = HostileTraffic(connection, seed=11)
        await traffic.start()
        for _ in range(WAVES):
            await traffic.wave(MESSAGES_EACH)
        assert worker.process.returncode is None
    assert sum(traffic.sent.values()) == WAVES * MESSAGES_EACH
    assert set(traffic.sent) == {str(kind.model_fields["kind"].default) for kind in MESSAGES}
    assert (traffic.doubled, traffic.told) == ([], [])
    assert {"answered", "invalid_job", "unknown_key"} <= set(traffic.ends)
    assert CANARY not in "".join(worker.lines)
    assert "Traceback" not in "".join(worker.lines)


async def test_nothing_is_believed_that_is_sealed_wrongly(
    connection: Connection, nats_server: LocalServer, tmp_path: Path
) -> None:
    seals, keys = hostile_seals(tmp_path, seed=12)
    flags = ("--name", WORKER, "--slots", "8", "--keys-file", str(keys))
    async with worker_process(*stand_in(nats_server, *flags)) as worker:
        traffic = HostileTraffic(connection, seed=12, seals=seals)
        await traffic.start()
        for _ in range(SEALED_WAVES):
            await traffic.wave(MESSAGES_EACH)
        assert worker.process.returncode is None
    assert (traffic.doubled, traffic.told, traffic.believed) == ([], [], [])
    assert set(traffic.sealed) == set(Manner)
    assert {"answered", "invalid_job", "unknown_key", "not_authentic"} <= set(traffic.ends)
    assert CANARY not in "".join(worker.lines)
    assert "Traceback" not in "".join(worker.lines)
