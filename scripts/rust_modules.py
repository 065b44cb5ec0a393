"""Reads from a crate's sources which of its modules use which.

A re-exported name counts as a use of the module that defines it, so a path through the crate's root hides no use.
`#[cfg(test)]` modules are ignored, whether inline or in a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Path_ = tuple[str, ...]

_LINE_COMMENT = re.compile(r"//[^\n]*")
_TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\(\w+\))? )?mod (\w+)\s*([;{])")
_USE = re.compile(r"^\s*(?:pub(?:\([^)\n]*\))?\s+)?use\s+([\w:{},*\s]+);", re.MULTILINE)
_PATH = re.compile(r"\b(?:crate|super|self)(?:\s*::\s*\w+)+")


@dataclass
class Module:
    """A module with a file of its own."""

    file: Path
    uses: list[Path_] = field(default_factory=list)
    """Absolute paths that it uses."""
    exports: dict[str, Path_] = field(default_factory=dict)
    """Names that it imports, public or private, with their absolute paths."""


def module_edges(source: Path) -> tuple[dict[str, Path], dict[str, set[str]]]:
    """The file of each module of the crate in folder `source`, and the modules it uses. The root is `crate`."""
    modules = _read(source)
    edges = {name: {_owner(used, modules) for used in module.uses} - {name} for name, module in modules.items()}
    files = {_text(name): module.file for name, module in modules.items()}
    return files, {_text(name): {_text(one) for one in used} for name, used in edges.items()}


def _text(module: Path_) -> str:
    return "::".join(("crate", *module))


def _read(source: Path) -> dict[Path_, Module]:
    texts: dict[Path_, tuple[Path, str]] = {}
    tests: set[Path_] = set()
    for file in sorted(source.rglob("*.rs")):
        parts = file.relative_to(source).with_suffix("").parts
        name = () if parts in {("lib",), ("main",)} else parts[:-1] if parts[-1] == "mod" else parts
        text, own_tests = _without_tests(_LINE_COMMENT.sub("", file.read_text(encoding="utf-8")))
        texts[name] = (file, text)
        tests |= {(*name, test) for test in own_tests}
    wanted = {name: one for name, one in texts.items() if not any(name[: len(test)] == test for test in tests)}
    modules = {name: Module(file) for name, (file, _) in wanted.items()}
    for name, (_, text) in wanted.items():
        module = modules[name]
        for match in _USE.finditer(text):
            for path, alias in _expanded(match[1]):
                absolute = _absolute(path, name, modules)
                if absolute is not None:
                    module.uses.append(absolute)
                    module.exports[alias] = absolute
        for match in _PATH.finditer(_USE.sub("", text)):
            absolute = _absolute(tuple(re.split(r"\s*::\s*", match[0])), name, modules)
            if absolute is not None:
                module.uses.append(absolute)
    return modules


def _without_tests(text: str) -> tuple[str, list[str]]:
    """The text without its inline test modules, and the names of test modules in separate files."""
    elsewhere = []
    while match := _TEST_MODULE.search(text):
        end = match.end()
        if match[2] == ";":
            elsewhere.append(match[1])
        else:
            end = _closing(text, end)
        text = text[: match.start()] + text[end:]
    return text, elsewhere


def _closing(text: str, start: int) -> int:
    """The end of the block whose brace opens before `start`. Assumes that braces in strings are balanced."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.end()
    return len(text)


def _expanded(tree: str) -> Iterator[tuple[Path_, str]]:
    """The paths of a `use` declaration, each with the name that it brings into scope."""
    tree = " ".join(tree.split())
    head, brace, rest = tree.partition("{")
    before = tuple(part.strip() for part in head.split("::") if part.strip())
    if not brace:
        path, _, alias = tree.partition(" as ")
        parts = tuple(part.strip() for part in path.split("::") if part.strip())
        yield parts, alias.strip() or parts[-1]
        return
    for piece in _pieces(rest[: rest.rindex("}")]):
        for within, alias in _expanded(piece):
            itself = within == ("self",)
            yield before if itself else (*before, *within), before[-1] if itself and alias == "self" else alias


def _pieces(text: str) -> Iterator[str]:
    """The parts of a list, split at commas outside of braces."""
    depth, piece = 0, ""
    for character in text:
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            if piece.strip():
                yield piece
            piece = ""
        else:
            piece += character
    if piece.strip():
        yield piece


def _absolute(path: Path_, module: Path_, modules: dict[Path_, Module]) -> Path_ | None:
    """The path from the crate's root; `None` for a path into another crate."""
    if path and path[0] == "crate":
        return path[1:]
    at = module
    if path and path[0] == "self":
        return (*at, *path[1:])
    if path and path[0] == "super":
        while path and path[0] == "super":
            at, path = at[:-1], path[1:]
        return (*at, *path)
    return (*module, *path) if path and (*module, path[0]) in modules else None


def _owner(path: Path_, modules: dict[Path_, Module]) -> Path_:
    """The module that a path refers to, resolving re-exports."""
    for _ in range(16):
        name = path
        while name not in modules:
            name = name[:-1]
        rest = path[len(name) :]
        target = modules[name].exports.get(rest[0]) if rest else None
        if target is None or target == path:
            return name
        path = (*target, *rest[1:])
    return name
