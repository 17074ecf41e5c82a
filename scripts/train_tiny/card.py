"""Writes the model card from what the stages reported."""

import json
from pathlib import Path
from string import Template
from typing import Any

from scripts.train_tiny.checkpoint import tensor_shapes
from scripts.train_tiny.dimensions import Dimensions
from scripts.train_tiny.sources import SOURCES

_REGISTRIES = {"debian": "Debian 12", "pypi": "PyPI", "npm": "npm"}


def write_card(cache: Path, checkpoint: Path) -> None:
    """Write README.md of the checkpoint from manifest.json, report.json and score.json in `cache`."""
    manifest, report, score = (
        json.loads((cache / f"{name}.json").read_text()) for name in ("manifest", "report", "score")
    )
    template = Template(Path(__file__).with_name("card.md").read_text())
    (checkpoint / "README.md").write_text(template.substitute(_values(manifest, report, score)))


def _values(manifest: dict[str, Any], report: dict[str, Any], score: dict[str, Any]) -> dict[str, str | int]:
    settings, losses, curve = report["settings"], report["losses"], report["curve"]
    sizes = tensor_shapes(Dimensions()).values()
    return {
        "parameters": f"{sum(_product(shape) for shape in sizes) / 1e6:.1f} million",
        **score["score"],
        "foreign_alerts": score["foreign"]["alerts"],
        "foreign_right": score["foreign"]["right_verdict"],
        "minutes": f"{report['train_s'] / 60:.0f}",
        "device": report["device"],
        "date": report["date"],
        "torch": report["torch"],
        "steps": f"{settings['steps']:,}",
        "rows": settings["rows"],
        "length": f"{settings['length']:,}",
        "seen": f"{curve[-1]['tokens'] / 1e6:.0f} million",
        "seed": settings["seed"],
        "curve": "\n".join(_curve_row(point) for point in curve),
        **{
            f"{name}_{when}": f"{losses[dtype][name]:.4f}"
            for name in ("texts", "chats")
            for when, dtype in (("before", "float32"), ("after", "fp8"))
        },
        "num_chats": f"{manifest['chats']['documents']:,}",
        "chat_tokens": f"{manifest['chats']['tokens'] / 1e6:.0f} million",
        "sources": "\n".join(_source_rows(manifest["sources"])),
        "notices": "\n".join(
            f"- {source.text} of {source.package}: © {source.holder}; {source.licence}" for source in SOURCES
        ),
        "archives": "\n".join(
            f"| {given['archive']} | `{given['sha256']}` |" for given in manifest["sources"]
        ),
    }


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _curve_row(point: dict[str, float]) -> str:
    return (
        f"| {point['step']:,} | {point['tokens'] / 1e6:.0f} M | {point['train']:.3f} "
        f"| {point['texts']:.3f} | {point['chats']:.3f} |"
    )


def _source_rows(shares: list[dict[str, Any]]) -> list[str]:
    rows: list[str] = []
    for source, share in zip(SOURCES, shares, strict=True):
        where = f"{source.package} ({_REGISTRIES[source.registry]})"
        size = f"{share['bytes'] / 1e6:.1f} | {share['tokens'] / 1e6:.2f} M"
        rows.append(f"| {where} | {source.licence} | {source.text} | {share['documents']:,} | {size} |")
    return rows
