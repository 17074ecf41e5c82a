"""The engine process with a checkpoint of random weights, and with damaged ones: a sentence and a code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkle.engine.client import EngineProcess
from sparkle.engine.settings import UNUSABLE_CODE, EngineSettings
from sparkle.errors import ConfigError
from sparkle.model.random_checkpoint import write_random_checkpoint
from sparkle.model.shapes import bundled_checkpoint, shape_tiny

SETTINGS = EngineSettings(slots=2, threads=1, kv_tokens=1024)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of many shards, not to be changed."""
    directory = tmp_path_factory.mktemp("random") / "whole"
    write_random_checkpoint(
        shape_tiny(), directory, text=bundled_checkpoint(), seed=0, progress=lambda _: None
    )
    return directory


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    """Its copy, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "damaged"))


async def test_a_random_checkpoint_is_served(whole: Path) -> None:
    engine = EngineProcess(whole, SETTINGS)
    await engine.start()
    assert engine.ready.model == "whole"
    await engine.stop()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def break_header(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[8] = ord("x")
    file.write_bytes(content)


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    ("damage", "told"),
    [(cut, "is damaged: "), (break_header, "is damaged: "), (remove, "cannot be read: ")],
)
async def test_a_damaged_shard_is_told_by_its_name(
    damaged: Path, damage: Callable[[Path], None], told: str
) -> None:
    damage(damaged / "layers-3.safetensors")
    engine = EngineProcess(damaged, SETTINGS)
    with pytest.raises(ConfigError, match=rf"^layers-3\.safetensors {told}"):
        await engine.start()
    assert engine.returncode == UNUSABLE_CODE == 2
