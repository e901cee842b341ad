"""Imports point one way: each file may import only what stands before it here, or in its folder."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RANKS: list[set[str]] = [
    {"chinese", "times"},
    {"text", "clock", "config", "files", "report", "memory", "bootstrap", "predictions"},
    {"sharding"},
    {"text_metrics", "overlap_metrics", "relations"},
    {"batches", "dropout", "linear", "metrics", "packaged"},
    {"waterfall"},
    {"compare"},
    {"chat"},
    {"data"},
    {"extraction"},
    {"graph"},
    {"walk"},
    {"retrieval"},
    {"fusion"},
    {"corpus", "heads"},
    {"examples"},
    {"text_recall"},
    {"encoders"},
    {"facts"},
    {"prompt"},
    {"shards", "collate", "constraint"},
    {"provenance"},
    {"prepare"},
    {"decoding"},
    {"packing"},
    {"generator"},
    {"model"},
    {"parallel"},
    {"answering", "checkpoint", "partial", "encoder_training", "ranker_training", "recall"},
    {"retriever_losses"},
    {"retriever_training"},
    {"cross_encoder_training"},
    {"runs", "steps", "vllm_engine", "consistency"},
    {"training", "evaluation", "planning"},
    {"sweep"},
    {"questeval", "uhgeval", "picture"},
    {"command_line"},
    {"text_commands"},
    {"cli"},
]
RANK = {part: rank for rank, parts in enumerate(RANKS) for part in parts}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "bisrqa").rglob("*.py"))
}


def imported(path: Path) -> set[str]:
    """Every module that the file imports anywhere in it, ``from bisrqa import x`` as bisrqa.x."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inner or {str(node.module)}
    return found


@pytest.mark.parametrize("module", [name for name in MODULES if name != "bisrqa"])
def test_no_import_points_back(module: str) -> None:
    part, *inner = module.split(".")[1:]
    assert part in RANK, f"{module} has no place in the order: give it one in RANKS"
    for target in imported(MODULES[module]):
        if not target.startswith("bisrqa."):
            continue
        other, *other_inner = target.split(".")[1:]
        assert other in RANK, f"{module} imports {target}, which has no place in the order"
        if part != other:
            assert RANK[other] < RANK[part], f"{module} must not import {target}"
        elif part == "heads" and inner:  # heads/__init__.py lists them all
            assert other_inner == ["base"], f"heads do not import one another: {module}, {target}"


def test_the_package_itself_imports_nothing_of_its_own() -> None:
    assert not [name for name in imported(MODULES["bisrqa"]) if name.startswith("bisrqa")]


@pytest.mark.parametrize("script", ["train.py", "evaluate.py"])
def test_scripts_import_only_the_package(script: str) -> None:
    assert {name.split(".")[0] for name in imported(ROOT / script)} == {"bisrqa"}
