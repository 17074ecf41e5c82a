"""Who may import whom: the table of CONTRIBUTING.md, held against the source of every module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sparkle"

# part -> parts it may import, besides itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "clock": set(),
    "schemas": {"errors"},
    "quiet": {"errors", "config"},
    "kernels": set(),
    "model": {"kernels.ops", "errors"},
    "drafting": {"model", "kernels.ops", "errors"},
    "text": {"schemas", "errors", "quiet"},
    "engine": {"model", "drafting", "kernels.ops", "text", "schemas", "errors", "config", "clock", "quiet"},
    "queue": {"schemas", "errors", "config"},
    "workers": {"engine", "queue", "schemas", "errors", "config", "clock", "quiet"},
    "producers": {"queue", "schemas", "errors", "config", "quiet"},
    "cli": {"producers", "workers", "model.commands", "errors", "config", "quiet"},
    "__init__": {"producers", "schemas", "errors"},
}
NEVER_TORCH = (
    "quiet",
    "schemas",
    "queue",
    "producers",
    "workers",
    "text",
    "errors",
    "config",
    "clock",
    "cli",
    "__init__",
)
TORCHLESS_ENGINE = (
    *("scheduler", "pages", "slots", "request", "plan", "frames", "settings", "client"),
    *("buckets", "rows", "memory_plan", "arguments", "draft_count", "draft_choice", "pass_costs"),
    *("order", "full_passes", "rounds", "prompt_rows", "waiting", "preemption", "admission", "spans"),
    *("blocks", "seen_blocks", "checkpoints", "checkpoint_places", "shared_places", "holdings"),
    *("lateness", "bucket_times"),
)
TORCHLESS_DRAFTING = (
    *("proposer", "lookup", "forced", "combined", "draft"),
    *("acceptance", "budget", "width"),
)


def modules() -> list[str]:
    """Every module of the package, dotted, without the leading `sparkle.`."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return sorted(".".join(path.parts) for path in paths)


def imports_of(module: str) -> Iterator[str]:
    """Every module that `module` imports anywhere in its text, also inside functions."""
    for node in ast.walk(ast.parse(source_of(module))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def loaded_with(module: str) -> set[str]:
    """What importing `module` imports, and what that imports: foreign names and our own modules."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        tree = ast.parse(source_of(current))
        for node in tree.body:  # what stands in functions is loaded when it is used
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                ours = name.removeprefix("sparkle.")
                if name == ours:
                    found.add(name.split(".")[0])
                elif ours not in found and (PACKAGE / Path(*ours.split("."))).with_suffix(".py").exists():
                    found.add(ours)
                    waiting.append(ours)
    return found


def source_of(module: str) -> str:
    return (PACKAGE / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")


def says_no_torch(module: str) -> bool:
    """Whether a module's first words promise it."""
    return bool(re.search(r"\bno torch\b", ast.get_docstring(ast.parse(source_of(module))) or ""))


def part_of(module: str) -> str:
    return module.split(".")[0]


def allowed(importer: str, imported: str) -> bool:
    """Whether `importer` may import `imported`, both without the leading `sparkle.`."""
    part = part_of(importer)
    if part_of(imported) == part:
        return True
    return any(imported == name or imported.startswith(f"{name}.") for name in ALLOWED[part])


@pytest.mark.parametrize("module", modules())
def test_imports_follow_the_table(module: str) -> None:
    ours = [name.removeprefix("sparkle.") for name in imports_of(module) if name.startswith("sparkle.")]
    # a test that would pass on an empty table could not fail: every part must be in it
    assert part_of(module) in ALLOWED
    assert [name for name in ours if not allowed(module, name)] == []


@pytest.mark.parametrize("module", modules())
def test_foreign_imports_stay_in_their_part(module: str) -> None:
    foreign = {name.split(".")[0] for name in imports_of(module)}
    if part_of(module) != "queue":
        assert "nats" not in foreign
    torchless_engine = part_of(module) == "engine" and module.split(".")[1] in TORCHLESS_ENGINE
    torchless_drafting = part_of(module) == "drafting" and module.split(".")[1] in TORCHLESS_DRAFTING
    if part_of(module) in NEVER_TORCH or torchless_engine or torchless_drafting:
        assert not foreign & {"torch", "triton", "transformers"}


@pytest.mark.parametrize("module", [module for module in modules() if says_no_torch(module)])
def test_who_says_that_it_knows_no_torch_loads_none(module: str) -> None:
    assert not loaded_with(module) & {"torch", "triton"}


def test_the_engines_process_checks_its_settings_before_it_loads_torch() -> None:
    assert "torch" not in loaded_with("engine.process")
    assert "torch" in loaded_with("engine.assemble"), "what is loaded in turn is seen"


def test_contributing_shows_the_same_table() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, flags=re.MULTILINE)
    assert {part: set(re.findall(r"`([\w.]+)`", cell)) for part, cell in rows} == ALLOWED


def test_the_table_refuses_what_it_should() -> None:
    assert not allowed("producers.client", "engine.frames")
    assert not allowed("model.decoder", "kernels.reference")
    assert not allowed("queue.lease", "workers.worker")
    assert allowed("model.decoder", "kernels.ops")
    assert allowed("model.decoder", "kernels.ops.rms_norm")


@pytest.mark.parametrize("module", modules())
def test_files_and_functions_stay_short(module: str) -> None:
    text = source_of(module)
    assert text.count("\n") <= 400, "one idea a file: split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= 80, f"{node.name} has {lines} lines: split it"


@pytest.mark.parametrize("module", modules())
def test_every_module_says_what_it_does(module: str) -> None:
    docstring = ast.get_docstring(ast.parse(source_of(module)))
    assert docstring is not None
    assert docstring.split("\n")[0].endswith((".", ":", ";"))


@pytest.mark.parametrize("link", ["kernels", "workers", "producers", "schemas"])
def test_the_links_at_the_root_are_relative(link: str) -> None:
    path = ROOT / link
    assert path.is_symlink()
    assert str(path.readlink()) == f"sparkle/{link}"
    assert not (PACKAGE / link / "__init__.py").exists()
