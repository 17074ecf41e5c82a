"""Hostile messages of every kind to a worker and to a client at once, each wave ended by a sound job.

A worker stands it when each job id that a message came under has exactly one end, and the sound job is
answered as if nothing else had come. With seals nothing may be believed, either way, that is sealed wrongly.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from sparkle.errors import ContractError
from sparkle.producers.handle import Handle
from sparkle.queue.answers import STORED_AS_HEADER, AnswerFeed
from sparkle.queue.connection import Connection, Envelope
from sparkle.queue.control import WorkerRoster
from sparkle.schemas import subjects
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.codec import decode
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.message import Message
from sparkle.schemas.priority import PriorityClass
from tests.hostile_messages import CANARY, HostileProducer
from tests.hostile_seals import HostileSeals, Manner, Sealed
from tests.worker_at_work import REGION, TENANT, Producer, make_job, tokens_of

WAIT_S = 60.0
WORKER = "w-1"
TO_CLIENTS = ("chunk", "result", "failure", "ask", "answered")
TO_WORKERS = ("cancel", "end_conversation", "resend", "offer", "heartbeat", "usage", "will")
JOB_SHARE = 0.15
"""Of all messages: each is stored, run or refused, answered and acknowledged."""

HEADERS: tuple[dict[str, str], ...] = (
    *({}, {}, {}, {"Status": "503"}, {subjects.KEY_HEADER: "k1"}, {subjects.KEY_HEADER: "\u00e9 "}),
    *({subjects.HOME_HEADER: WORKER}, {subjects.HOME_HEADER: "nobody"}, {subjects.HOME_HEADER: "*"}),
    *({subjects.TRACE_HEADER: CANARY}, {subjects.SUBJECT_HEADER: "jobs.x", subjects.ACK_HEADER: CANARY}),
)
REPEATED = {subjects.PUBLICATION_HEADER: "2"}
"""Of a job that may have been answered in part: what was written of it is asked for and read."""

READ_BY_WORKERS = (Manner.SOUND, Manner.CLEAR)
REFUSALS = {"unknown_key", "not_authentic"}


class HostileTraffic:
    """Sends waves of messages over one connection, and counts what comes back."""

    def __init__(self, connection: Connection, seed: int, seals: HostileSeals | None = None) -> None:
        """`seals` seals jobs and answers, rightly or not, of a tenant whose keys the worker has."""
        self.sent: Counter[str] = Counter()
        """By kind."""
        self.ends: Counter[str] = Counter()
        """By outcome."""
        self.doubled: list[str] = []
        """Jobs with a second end."""
        self.told: list[str] = []
        """Texts of failures with something of the message in them."""
        self.sealed: Counter[Manner] = Counter()
        """By how."""
        self.believed: list[str] = []
        """What was taken although it was sealed wrongly, or sent in the clear although it must not be."""
        self._seals = seals
        self._sealed_as: dict[str, Manner] = {}
        self._may_be_heard = self._heard = 0
        self._connection = connection
        self._draw = random.Random(seed)
        self._sender = HostileProducer(seed, tenant=TENANT, region=REGION)
        self._sound = Producer(connection)
        self._roster = WorkerRoster(connection, REGION)
        self._waiting: set[str] = set()
        self._ended: set[str] = set()
        self._news = asyncio.Event()
        self._inbox = connection.new_inbox()

    async def start(self) -> None:
        """Hear ends, heartbeats and what is said to offers."""
        await self._roster.start()
        await self._connection.subscribe(subjects.reply(TENANT, "*"), self._take_end)
        await self._connection.subscribe(self._inbox, self._take_offer_answer)

    async def wave(self, num: int) -> None:
        """So many messages; returns when each job has its end and a sound one its answer.

        Raises TimeoutError where one has not.
        """
        victim = new_job_id()
        handle = Handle(victim, ask_resend=lambda _: None, cancel=_nothing)
        feed = AnswerFeed(self._connection)

        def hear(chunk: Chunk) -> None:
            self._heard += 1
            handle.on_chunk(chunk)

        key = None if self._seals is None else self._seals.own
        await feed.open(TENANT, victim, hear, handle.on_end, key)
        self._ended.clear()
        self._sealed_as.clear()
        self._heard = self._may_be_heard = 0
        num_jobs = int(num * JOB_SHARE)
        jobs = asyncio.gather(*(self._send_job() for _ in range(num_jobs)))
        for _ in range(num - num_jobs - 1):
            await self._send_other(victim)
        await jobs
        await self._all_ended()
        await self._sound_job()
        await feed.close(TENANT, victim)
        if self._heard > self._may_be_heard:
            self.believed.append(f"{self._heard - self._may_be_heard} chunks")

    async def _send_job(self) -> None:
        job = new_job_id()
        self._waiting.add(job)
        address = subjects.JobAddress(REGION, self._draw.choice(list(PriorityClass)), TENANT, job)
        one = self._seal(address.subject, self._sender.message(job))
        self._sealed_as[job] = one.manner
        headers = one.headers
        if self._draw.random() < 0.2:
            headers = {**headers, **REPEATED}
            stored = self._seal(subjects.answered(TENANT, job), self._sender.of("answered", job))
            await self._connection.publish_stored(
                subjects.answered(TENANT, job), stored.payload, headers=stored.headers
            )
        await self._connection.publish_stored(address.subject, one.payload, headers=headers)
        self.sent["job"] += 1

    async def _send_other(self, victim: str) -> None:
        if self._draw.random() < 0.3:
            kind, job = self._draw.choice(TO_CLIENTS), victim
        else:
            kind = self._draw.choice(TO_WORKERS)
            job = self._draw.choice((*list(self._waiting)[:3], new_job_id()))
        subject = self._subject_of(kind, job)
        reply = self._inbox if kind in ("offer", "ask", "will") and self._draw.random() < 0.9 else ""
        payload = self._sender.of(kind, job)
        if kind in TO_CLIENTS:
            one = self._seal(subject, payload)
            # under another name of its own the content may be of any kind
            self._may_be_heard += self._seals is None or one.manner is Manner.SOUND
        else:
            one = Sealed(Manner.CLEAR, payload, self._draw.choice(HEADERS))
        await self._connection.publish(subject, one.payload, headers=one.headers, reply=reply)
        self.sent[kind] += 1

    def _seal(self, subject: str, payload: bytes) -> Sealed:
        headers = self._draw.choice(HEADERS)
        if self._seals is None:
            return Sealed(Manner.CLEAR, payload, headers)
        one = self._seals.seal(subject, payload)
        self.sealed[one.manner] += 1
        others = {name: value for name, value in headers.items() if name != subjects.KEY_HEADER}
        return Sealed(one.manner, one.payload, {**others, **one.headers})

    def _subject_of(self, kind: str, job: str) -> str:
        match kind:
            case "cancel":
                return subjects.cancel(TENANT, job)
            case "end_conversation":
                return subjects.end_conversation(TENANT, self._draw.choice(("c-1", "c-2", "-" * 64)))
            case "resend":
                return subjects.resend(WORKER)
            case "offer":
                return subjects.offer(REGION, WORKER)
            case "will":
                return subjects.will(REGION, WORKER)
            case "heartbeat":
                return subjects.heartbeat(REGION, self._draw.choice((WORKER, "nobody")))
            case "usage":
                return subjects.usage(REGION, TENANT, job)
            case _:
                return subjects.reply(TENANT, job)

    async def _sound_job(self) -> None:
        job = make_job()
        watched = await self._sound.submit(job, key=None if self._seals is None else self._seals.own)
        async with asyncio.timeout(WAIT_S):
            result = await watched.result()
        assert result.tokens == tokens_of(job)
        await self._sound.feed.close(TENANT, job.id)
        self.sent["job"] += 1

    async def _all_ended(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while self._waiting:
                self._news.clear()
                await self._news.wait()

    async def _take_end(self, envelope: Envelope) -> None:
        """The stored end of a job of ours, which the server sends on; others' are forged."""
        job = envelope.subject.rpartition(".")[2]
        if envelope.reply.startswith("told."):
            told = self._seal(subjects.answered(TENANT, job), self._sender.of("answered", job))
            await self._connection.publish(envelope.reply, told.payload, headers=told.headers)
            return
        if "Nats-Sequence" not in envelope.headers:
            return
        try:
            end = decode(self._opened(envelope), Result, Failure)
        except ContractError:
            self.told.append("an end that is none")
            return
        self._check_seal(job, end, is_sealed=subjects.KEY_HEADER in envelope.headers)
        if job in self._ended:
            self.doubled.append(job)
        if job in self._waiting:
            self._waiting.discard(job)
            self._ended.add(job)
            self.ends[end.code.value if isinstance(end, Failure) else "answered"] += 1
            if isinstance(end, Failure) and CANARY in end.message:
                self.told.append(end.message)
        self._news.set()

    def _opened(self, envelope: Envelope) -> bytes:
        """What is in it. Raises NotAuthentic."""
        if self._seals is None or subjects.KEY_HEADER not in envelope.headers:
            return envelope.payload
        return self._seals.own.open(envelope.headers[STORED_AS_HEADER], envelope.payload)

    def _check_seal(self, job: str, end: Message, *, is_sealed: bool) -> None:
        manner = self._sealed_as.get(job, Manner.CLEAR)
        refused = isinstance(end, Failure) and end.code.value in REFUSALS
        if self._seals is not None and manner not in READ_BY_WORKERS and not refused:
            self.believed.append(f"a job that was {manner}")
        if manner is Manner.SOUND and isinstance(end, Result) and not is_sealed:
            self.believed.append("an answer in the clear")

    async def _take_offer_answer(self, envelope: Envelope) -> None:
        """A worker says yes: it gets no delivery, but something else."""
        if envelope.reply:
            payload, headers = self._sender.message(new_job_id()), self._draw.choice(HEADERS)
            await self._connection.publish(envelope.reply, payload, headers=headers)


async def _nothing() -> None:
    return
