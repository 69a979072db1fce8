"""Circles among the files of the package and of the studies: imports by which a file reaches itself.

    python -m tools.check_circles

prints each circle and fails where there is one. Imports inside of functions and those for type checkers count, too:
files in a circle cannot be understood, moved or tested one by one.
"""

from __future__ import annotations

import sys

import grimp

PACKAGES = ("gradleak", "studies")


def circles(graph: grimp.ImportGraph) -> list[tuple[str, ...]]:
    """The shortest circles through each import that is in one, each beginning with its first name.

    Args:
        graph: of all imports.

    Examples:
        >>> graph = grimp.ImportGraph()
        >>> for importer, imported in ("ab", "bc", "ca", "cd"):
        ...     graph.add_import(importer=importer, imported=imported)
        >>> circles(graph)
        [('a', 'b', 'c')]
    """
    found = set()
    for importer, imported in _inner_imports(graph):
        if chain := graph.find_shortest_chain(imported, importer):
            first = chain.index(min(chain))
            found.add((*chain[first:], *chain[:first]))
    return sorted(found, key=lambda circle: (len(circle), circle))


def _inner_imports(graph: grimp.ImportGraph) -> set[tuple[str, str]]:
    """The imports that are left once files that import nothing, or are imported by nobody, are taken away in turn."""
    imports = {(m, other) for m in graph.modules for other in graph.find_modules_directly_imported_by(m)}
    while True:
        kept = {importer for importer, _ in imports} & {imported for _, imported in imports}
        inner = {pair for pair in imports if kept.issuperset(pair)}
        if len(inner) == len(imports):
            return imports
        imports = inner


def main() -> int:
    """Print the circles; 1 where there is one."""
    found = circles(grimp.build_graph(*PACKAGES, cache_dir=None))
    for circle in found:
        print(f"circle of {len(circle)} files: {' -> '.join((*circle, circle[0]))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
