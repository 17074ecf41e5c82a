"""Whole scenarios with a canary in every field of content, then a search of all that any process left behind.

`test_leaks_are_found.py` shows that the search finds what it should.
"""

from __future__ import annotations

import logging

import pytest

from tests.canaries import Canaries
from tests.kept_scenarios import run_scenarios
from tests.kept_site import MONITORING, Site

pytestmark = pytest.mark.acceptance

OUTCOMES = {
    **dict.fromkeys(("chat", "thinking", "prompt", "ids"), "answered"),
    **dict.fromkeys(("schema", "choice", "expression", "grammar", "tool"), "answered"),
    "cancelled": "cancelled",
    "deadline": "deadline_exceeded",
    "ask": "0",
    "batch": "1",
    **dict.fromkeys(("unknown field", "wrong type", "wrong role", "wrong tool"), "invalid_job"),
    **dict.fromkeys(("no message", "another's id"), "invalid_job"),
    **dict.fromkeys(("wrong schema", "wrong grammar", "wrong expression"), "invalid_grammar"),
    "cannot be enforced": "unsupported_schema",
    "too complex": "grammar_too_complex",
    **dict.fromkeys(("refused field", "refused type", "full queue"), "refused"),
    "killed": "went on",
    "crashed": "told its place",
}


# three starts of a worker and some thirty jobs: half a minute, where the machine has nothing else to do
@pytest.mark.timeout(600)
async def test_no_content_is_left_anywhere(nats_binary: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    canaries = Canaries()
    async with Site() as site:
        outcomes = await run_scenarios(site, canaries)
        assert site.search(canaries) == []
        assert outcomes == OUTCOMES
        assert_all_was_looked_at(site)


def assert_all_was_looked_at(site: Site) -> None:
    """The search had something to look at, of each kind."""
    events = site.said("w-1") + site.said("w-2")
    for event in ("worker_ready", "job_done", "start_phases", "memory_plan"):
        assert f'"{event}"' in events
    kinds = ("cmdline of", "environ of", "name of thread", "text of an error", "text of a failure", "log of")
    for kind in (*kinds, "subjects and headers"):
        assert [where for where in site.evidence if where.startswith(kind)], kind
    pages = {where: bytes(data) for where, data in site.evidence.items() if where.startswith("page")}
    assert len(pages) == len(MONITORING) + 1
    assert b"sparkle_jobs_total" in b"".join(pages.values())
    assert "[DBG]" in (site.root / "logs" / "nats-server").read_text(encoding="utf-8")
