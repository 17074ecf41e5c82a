"""The command line without a server: help, flags, errors as one sentence, exit codes."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner, Result

from sparkle import cli
from sparkle.cli import TABLES, app, exit_code
from sparkle.config import environment
from sparkle.errors import (
    AnswerChanged,
    ConfigError,
    EngineExited,
    FailureCode,
    InvalidMessage,
    JobFailed,
    NotConnected,
    QueueFull,
    SparkleError,
    TopologyMissing,
)

NOBODY = "nats://127.0.0.1:1"
"""Port 1 is reserved: nothing listens there."""

CANARY = "canary-7f3a"


def invoke(*arguments: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Result:
    # wide enough that no sentence is folded
    return CliRunner().invoke(app, list(arguments), input=stdin, env={"COLUMNS": "200", **(env or {})})


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("ask", 'sparkle ask "Is a failed login at 3 am an incident?"'),
        ("batch", "sparkle batch alerts.jsonl -o verdicts.jsonl"),
        ("status", "sparkle status --watch"),
        ("topology apply", "sparkle topology apply --region eu"),
        ("topology show", "sparkle topology show --nats"),
        ("topology config", "sparkle topology config --role worker --name w1"),
        ("topology key", "sparkle topology key w1.seed"),
        ("demo", "sparkle demo"),
        ("up", "sparkle up --port 0"),
        ("checkpoint random", "sparkle checkpoint random --shape 27b"),
        ("kernels build", "sparkle kernels build --model"),
        ("worker", "sparkle worker --region eu --nats"),
        ("worker drain", "sparkle worker drain gpu-7-3f2a1c"),
        ("gateway", "sparkle gateway --no-keys"),
    ],
)
def test_each_help_has_an_example_and_exit_codes(command: str, example: str) -> None:
    result = invoke(*command.split(), "--help")
    assert result.exit_code == 0
    assert example in result.output
    assert "Exit codes: " in result.output


def commands(group: TyperGroup, *path: str) -> list[str]:
    """Everything that can be run, as it is typed."""
    found: list[str] = []
    for name, command in group.commands.items():
        inner = commands(command, *path, name) if isinstance(command, TyperGroup) else []
        # a group that does something without a command is one itself
        alone = [] if inner and not getattr(command, "invoke_without_command", False) else [name]
        found += [*(" ".join((*path, one)) for one in alone), *inner]
    return found


def test_every_command_is_in_the_help_and_has_an_example() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    output = invoke("--help").output
    every = commands(group)
    assert {"ask", "worker", "topology apply", "kernels build"} <= set(every)
    for command in every:
        assert f" {command.split()[0]} " in output
        shown = invoke(*command.split(), "--help").output
        assert re.search(rf"Examples?:\s+sparkle {command}\b", shown), command


def test_the_help_names_every_table_of_settings() -> None:
    output = invoke("--help").output
    assert [table for table in TABLES if f"[{table}]" not in output] == []


def test_a_table_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text("[engin]\ncache_s = 0\n")
    result = invoke("--config", str(file), "worker", "--region", "eu")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"sparkle: {file}: engin is none of its tables, [client], [bus], ")
    assert result.stderr.count("\n") == 1


def test_the_version_is_the_distributions() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.startswith("sparkle ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailed(FailureCode.TOO_LONG, "why", retryable=False), 1),
        (AnswerChanged("why"), 1),
        (EngineExited("why"), 1),
        (ConfigError("why"), 2),
        (InvalidMessage("why"), 2),
        (NotConnected("why"), 3),
        (QueueFull("why"), 3),
        (TopologyMissing("why"), 3),
    ],
)
def test_each_error_has_its_exit_code(error: SparkleError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    "command", [("ask", CANARY), ("status",), ("topology", "show"), ("topology", "apply")]
)
def test_no_server_is_one_sentence(command: tuple[str, ...]) -> None:
    result = invoke(*command, "--nats", NOBODY, env={"SPARKLE_CLIENT_CONNECT_TIMEOUT_S": "0.1"})
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith("sparkle: no server at 127.0.0.1:1 within 0.1 s")
    assert result.stderr.count("\n") == 1
    assert CANARY not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--temperature", "3"), "sampling.temperature: Input should be less than or equal to 2"),
        (("--max-tokens", "0"), "max_tokens: Input should be greater than or equal to 1"),
        (("--seed", "-1"), "sampling.seed: Input should be greater than or equal to 0"),
        (("--region", "No Such"), "region is 'No Such' but must be"),
        (("--tenant", "a.b"), "tenant is 'a.b' but must be"),
    ],
)
def test_a_bad_flag_is_one_sentence_without_the_question(arguments: tuple[str, ...], says: str) -> None:
    result = invoke("ask", CANARY, *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert CANARY not in result.stderr


def test_an_empty_question_is_refused() -> None:
    result = invoke("ask", "-", stdin=" \n")
    assert result.exit_code == 2
    assert result.stderr.startswith("sparkle: the question is empty")


def test_debug_shows_the_place_and_not_the_question() -> None:
    result = invoke("--debug", "ask", CANARY, "--temperature", "3")
    assert "Traceback" in result.stderr
    assert "in chat_job" in result.stderr
    assert CANARY not in result.stderr


def test_settings_come_from_the_file_then_the_environment_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text('[client]\nregion = "FILE"\ntenant = "FILE"\n')
    from_file = invoke("--config", str(file), "ask", "x")
    assert "region is 'FILE'" in from_file.stderr
    from_environment = invoke("--config", str(file), "ask", "x", env={"SPARKLE_CLIENT_REGION": "ENVIRONMENT"})
    assert "region is 'ENVIRONMENT'" in from_environment.stderr
    from_flags = invoke(
        "--config", str(file), "ask", "x", "--region", "eu", env={"SPARKLE_CLIENT_REGION": "ENVIRONMENT"}
    )
    assert "tenant is 'FILE'" in from_flags.stderr


def test_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text("[outbox]\nsilence_s = 90\n")
    result = invoke("--config", str(file), "ask", "x")
    assert "silence_s is 90.0 but must be above 0 and at most silence_max_s, 60.0" in result.stderr
    result = invoke("ask", "x", env={"SPARKLE_CLIENT_NATZ": "x"})
    assert "client has no setting natz" in result.stderr


def test_input_and_output_of_a_batch_are_two_files(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"custom_id": CANARY}))
    result = invoke("batch", str(file), "-o", str(file))
    assert result.exit_code == 2
    assert result.stderr == f"sparkle: {file} is the input as well; name another file with -o\n"
    assert invoke("batch", str(tmp_path / "none"), "-o", "x").exit_code == 2


def test_a_fault_of_the_program_tells_its_place_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault() -> None:
        raise ValueError(CANARY)

    monkeypatch.setattr(cli, "app", fault)
    # it is for a process of its own
    began: list[int] = []
    monkeypatch.setattr(cli, "keep_content_in", began.append)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert began == [logging.ERROR]
    said = capsys.readouterr().err
    assert "in fault" in said
    assert "sparkle: a fault in the program: ValueError at the place above" in said
    # the source line is there, the value is not
    assert said.count(CANARY) == 0


def test_the_environment_of_this_test_is_clean() -> None:
    assert not [name for name in environment() if name.startswith("SPARKLE_")]
