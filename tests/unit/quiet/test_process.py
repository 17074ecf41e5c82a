"""A process that fails in any way says what and where, without values, and leaves no core dump."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkle.config import environment

CANARY = "canary-77ab"
PACKAGE = Path(__file__).parents[3] / "sparkle"
NO_CONTENT = {"schemas/export.py"}
"""For developers: writes the contract's own schemas."""

START = f"""
import asyncio, os, resource, sys, threading, warnings
from sparkle.quiet.process import keep_content_in
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
keep_content_in()
def fail(canary):
    raise KeyError(canary)
canary = "{CANARY}"
"""
UNCAUGHT = "fail(canary)"
CHAINED = """
try:
    fail(canary)
except KeyError:
    raise KeyboardInterrupt
"""
THREAD = """
thread = threading.Thread(target=fail, args=(canary,), name=canary)
thread.start()
thread.join()
"""
UNRAISABLE = """
class Holder:
    def __repr__(self): return canary
    def __del__(self): fail(canary)
Holder()
"""
NOBODY_AWAITS = """
async def main():
    async def failing(): fail(canary)
    asyncio.create_task(failing(), name=canary)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
asyncio.run(main())
"""
CALLBACK = """
async def main():
    asyncio.get_running_loop().call_soon(fail, canary)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
asyncio.run(main())
"""
WARNING = "warnings.warn(canary)"


def run(program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START + program]
    env = {**environment(), **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=env)


@pytest.mark.parametrize(
    ("program", "event", "error", "code"),
    [
        (UNCAUGHT, "process_failed", "KeyError", 1),
        (CHAINED, "process_failed", "KeyboardInterrupt", -signal.SIGINT),
        (THREAD, "thread_failed", "KeyError", 0),
        (UNRAISABLE, "unraisable", "KeyError", 0),
        (NOBODY_AWAITS, "library_event", "KeyError", 0),
        (CALLBACK, "library_event", "KeyError", 0),
    ],
    ids=["uncaught", "chained", "thread", "unraisable", "task", "callback"],
)
def test_an_error_that_nobody_catches_is_told_by_kind_and_place(
    program: str, event: str, error: str, code: int, tmp_path: Path
) -> None:
    done = run(program, tmp_path)
    (line,) = done.stderr.splitlines()
    told = json.loads(line)
    assert (told["event"], told["error"], done.returncode) == (event, error, code)
    assert told["place"].startswith("<string>:")
    assert CANARY not in done.stderr + done.stdout


def test_a_warning_is_an_event_of_a_library(tmp_path: Path) -> None:
    done = run(WARNING, tmp_path)
    told = json.loads(done.stderr)
    assert (told["event"], told["logger"]) == ("library_event", "py.warnings")
    assert CANARY not in done.stderr


def test_a_crash_tells_functions_and_leaves_no_core(tmp_path: Path) -> None:
    done = run("def crash(canary): os.abort()\ncrash(canary)", tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert "in crash" in done.stderr
    assert CANARY not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_neither_files_nor_programs_get_a_core(tmp_path: Path) -> None:
    shown = "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    done = run(f"import ctypes; {shown}", tmp_path)
    # 3 asks whether the kernel may dump this process at all
    assert done.stdout == "(0, 0) 0\n"


def test_the_drivers_dumps_of_the_gpus_memory_are_off(tmp_path: Path) -> None:
    # as the driver reads it, past Python
    asked = "print(ctypes.CDLL(None).getenv(b'CUDA_ENABLE_COREDUMP_ON_EXCEPTION'))"
    done = run(f"import ctypes; {asked}", tmp_path, CUDA_ENABLE_COREDUMP_ON_EXCEPTION="1")
    assert done.stdout == "0\n"


@pytest.mark.parametrize("descriptor", [1, 2])
def test_libraries_that_print_past_python_are_not_heard(descriptor: int, tmp_path: Path) -> None:
    program = f"""
from sparkle.quiet.process import silence_libraries
import logging
os.write({descriptor}, b"before ")
silence_libraries()
os.write({descriptor}, canary.encode())
subprocess.run(["sh", "-c", "echo $0 >&{descriptor}", canary])
logging.getLogger("sparkle.x").info("job_done", extra={{"tokens": 3}})
print(canary, file=sys.stderr, flush=True)
def crash(canary): os.abort()
crash(canary)
"""
    done = run(f"import subprocess{program}", tmp_path)
    said = done.stdout + done.stderr
    assert CANARY not in said
    assert said.count("before ") == 1
    assert '"event": "job_done", "logger": "sparkle.x", "tokens": 3}' in said
    assert "in crash" in said


def test_children_inherit_the_limit(tmp_path: Path) -> None:
    done = run("os.execlp('sh', 'sh', '-c', 'ulimit -c; ulimit -Hc')", tmp_path)
    assert done.stdout.split() == ["0", "0"]


def programs() -> list[str]:
    """Modules that are run as programs."""
    files = (path for path in PACKAGE.rglob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8"))
    return sorted(str(path.relative_to(PACKAGE)) for path in files)


@pytest.mark.parametrize("program", [name for name in programs() if name not in NO_CONTENT])
def test_every_program_begins_with_it(program: str) -> None:
    tree = ast.parse((PACKAGE / program).read_text("utf-8"))
    (main,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    first = next(node for node in main.body if not isinstance(getattr(node, "value", None), ast.Constant))
    assert ast.unparse(first).startswith("keep_content_in(")


def test_the_programs_are_found() -> None:
    assert {"cli.py", "engine/process.py", "text/grammar_process.py"} <= set(programs())
