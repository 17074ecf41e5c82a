"""Whatever breaks inside the engine process: nothing of a prompt or an answer is in what it writes."""

from __future__ import annotations

import pytest

from sparkle.engine.frames import Failed, Frame, Ready, Submit
from sparkle.errors import FailureCode
from sparkle.schemas import codec
from sparkle.schemas.job import Job, Turn
from tests.engine.child import Outcome, run_child

CANARY = "the-canary-in-the-prompt"


def submit() -> Submit:
    job = Job(messages=[Turn(role="user", content=f"please repeat: {CANARY}")], max_tokens=5)
    return Submit(job=job.id, payload=codec.encode(job))


def check_silence(outcome: Outcome) -> None:
    """No text of the prompt, in none of the forms that a traceback or a repr would give it."""
    assert outcome.output, "the process must have logged something"
    for secret in (CANARY, "canary", "please", "cannot handle", "max_tokens", "Turn("):
        assert secret not in outcome.output


@pytest.mark.parametrize(
    ("fault", "message", "place"),
    [
        ("prompt", "the prompt could not be made (KeyError)", "intake.py"),
        ("answer", "the engine failed on this answer (KeyError)", "answer_frames.py"),
    ],
)
def test_a_fault_of_one_job_is_a_failure_without_content(fault: str, message: str, place: str) -> None:
    first, second = submit(), submit()
    outcome = run_child(fault, [first, second], failures=2)
    ends = {frame.job: frame for frame in outcome.frames if isinstance(frame, Failed)}
    assert set(ends) == {first.job, second.job}
    assert {end.message for end in ends.values()} == {message}
    assert {end.code for end in ends.values()} == {FailureCode.ENGINE_ERROR}
    check_silence(outcome)
    assert '"error": "KeyError", "place": "child.py' in outcome.output
    assert place in outcome.output
    assert outcome.code == 0


def test_a_fault_of_a_pass_ends_the_process_without_a_traceback() -> None:
    frames: list[Frame] = [submit()]
    outcome = run_child("pass", frames, failures=1)
    assert [type(frame) for frame in outcome.frames] == [Ready]
    check_silence(outcome)
    assert "Traceback" not in outcome.output
    assert '"event": "process_failed"' in outcome.output
    assert '"error": "KeyError", "place": "child.py' in outcome.output
    assert outcome.code == 1
