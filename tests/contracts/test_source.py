"""What no module of the package may do, read off its source."""

from __future__ import annotations

import ast
from pathlib import Path

import gradleak

SOURCE = Path(gradleak.__file__).parent


def _leaky(tree: ast.AST) -> list[int]:
    """Lines with `backward(create_graph=...)`, which keeps graph and gradients of every step alive in a cycle."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
        and any(keyword.arg == "create_graph" for keyword in node.keywords)
    ]


def test_no_module_calls_backward_with_a_graph() -> None:
    """U63: no backward pass with a graph."""
    assert _leaky(ast.parse("loss.backward(create_graph=True)")) == [1]
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    assert {file.name: lines for file in files if (lines := _leaky(ast.parse(file.read_text(encoding="utf-8"))))} == {}
