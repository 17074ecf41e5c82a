"""`sparkle checkpoint random`: what it writes, what it says, what it refuses."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from sparkle.cli import app
from sparkle.model.config import LayerType, read_config
from sparkle.model.safetensors_header import stored_tensors


def write(*flags: str) -> Result:
    return CliRunner().invoke(app, ["checkpoint", "random", *flags], env={"COLUMNS": "200"})


def test_it_writes_what_it_says(tmp_path: Path) -> None:
    out = tmp_path / "new" / "random"
    result = write("--shape", "tiny", "--out", str(out))
    assert result.exit_code == 0
    assert f"8 layers with 0.02 GB of random weights to {out}" in result.output
    assert f"done; `sparkle worker --model {out}` loads it" in result.output
    assert read_config(out).num_layers == 8
    assert len(list(out.glob("layers-*.safetensors"))) == 8


def test_the_first_layers_alone(tmp_path: Path) -> None:
    assert write("--shape", "tiny", "--layers", "4", "--out", str(tmp_path)).exit_code == 0
    assert read_config(tmp_path).layer_types == (*[LayerType.LINEAR] * 3, LayerType.FULL)
    assert not (tmp_path / "layers-4.safetensors").exists()


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    contents: set[bytes] = set()
    for seed in ("1", "2"):
        out = tmp_path / seed
        assert write("--shape", "tiny", "--layers", "1", "--seed", seed, "--out", str(out)).exit_code == 0
        contents.add((out / "layers-0.safetensors").read_bytes())
        stored = stored_tensors(out / "layers-0.safetensors")
        assert stored["model.language_model.layers.0.mlp.down_proj.weight"].shape == (256, 512)
    assert len(contents) == 2


def test_a_directory_in_use_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    result = write("--shape", "tiny", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert (
        result.stderr == f"sparkle: {tmp_path} is not empty: nothing is overwritten, give a new directory\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_more_layers_than_there_are(tmp_path: Path) -> None:
    result = write("--shape", "27b", "--layers", "65", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == "sparkle: layers is 65 but 27b has 64\n"


def test_where_to_must_be_said() -> None:
    assert write("--shape", "tiny").exit_code == 2
