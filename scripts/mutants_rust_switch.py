"""Writes Rust sources with many mutants, each behind a switch that an environment variable turns on at run time.

A mutant is one change of one operator, match arm, guard, field or function body, as cargo-mutants lists it. A source
with switches compiles once, so trying a mutant needs no build. Line numbers do not change, so that compiler errors can
be attributed to the mutants that cause them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tree_sitter
import tree_sitter_rust

_LANGUAGE = tree_sitter.Language(tree_sitter_rust.language())
_SWITCH = "crate::mutant_switch::on"
_REPEATED_BYTES_MAX = 300
"""Operands up to this length are repeated for each mutant, so that the compiler infers their types."""
_COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")
_CONSTANT = ("const_item", "static_item", "array_type", "const_block", "const_parameter", "enum_variant")

SWITCH_MODULE = """
#[doc(hidden)]
#[allow(warnings, clippy::all)]
pub mod mutant_switch {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const NONE: u32 = u32::MAX;
    const UNKNOWN: u32 = u32::MAX - 1;
    const REACH: u32 = u32::MAX - 2;
    static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
    static SEEN: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];

    #[inline]
    pub fn on(mutant: u32) -> bool {
        let active = ACTIVE.load(Relaxed);
        active == mutant || active > NONE - 3 && active != NONE && look(mutant)
    }

    #[cold]
    fn look(mutant: u32) -> bool {
        if ACTIVE.load(Relaxed) == UNKNOWN {
            let active = match std::env::var("MUTANT") {
                Ok(number) => number.parse().unwrap(),
                Err(_) if std::env::var_os("MUTANTS_REACHED").is_some() => REACH,
                Err(_) => NONE,
            };
            ACTIVE.store(active, Relaxed);
            return on(mutant);
        }
        // Another thread may have asked since.
        if ACTIVE.load(Relaxed) != REACH {
            return ACTIVE.load(Relaxed) == mutant;
        }
        let bit = 1 << (mutant % 32);
        if SEEN[mutant as usize / 32].fetch_or(bit, Relaxed) & bit == 0 {
            use std::io::Write;
            let path = std::env::var_os("MUTANTS_REACHED").unwrap();
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
            file.write_all(format!("{mutant}\\n").as_bytes()).unwrap();
        }
        false
    }
}
"""
"""Reads the number of the active mutant from MUTANT once. Without MUTANT, it appends the numbers of reached mutants to
the file in MUTANTS_REACHED, if that is set."""
NUMBERS = 32 * 1024
_ALLOWED = "#![allow(warnings, arithmetic_overflow, unconditional_recursion, unconditional_panic)] "


@dataclass(frozen=True)
class Mutant:
    """One change of a source. Lines and columns count from one, columns in characters."""

    number: int
    file: str
    name: str
    genre: str
    line: int
    column: int
    replacement: str

    @property
    def change(self) -> str:
        """Description of the change, without file and line."""
        return self.name.split(": ", 1)[1]


def listed(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mutant]:
    """The mutants of cargo-mutants' list in JSON."""
    for number, entry in enumerate(entries):
        start = entry["span"]["start"]
        yield Mutant(
            number, entry["file"], entry["name"], entry["genre"], start["line"], start["column"], entry["replacement"]
        )


def with_switches(source: str, mutants: Iterable[Mutant]) -> tuple[str, set[int]]:
    """The source with switches, and the numbers of the mutants that have one."""
    at: dict[tuple[int, int], list[Mutant]] = {}
    for mutant in mutants:
        at.setdefault((mutant.line, mutant.column), []).append(mutant)
    raw = source.encode()
    switches = _Switches(raw, at)
    root = tree_sitter.Parser(_LANGUAGE).parse(raw).root_node
    # The root node does not include leading and trailing whitespace.
    text = raw[: root.start_byte] + switches.of(root) + raw[root.end_byte :]
    return text.decode(), switches.placed


def at_top(source: str) -> str:
    """The root module of a crate with the module of switches, and without warnings, which mutants would cause."""
    return _ALLOWED + source + SWITCH_MODULE


def nearest(text: str, line: int, column: int) -> int | None:
    """The mutant that causes a compiler error at this position of a source with switches."""
    lines = text.split("\n")
    before = lines[line - 1][: column + 2]
    if found := re.findall(rf"{_SWITCH}\((\d+)\)", before):
        return int(found[-1])
    after = re.findall(rf"{_SWITCH}\((\d+)\)", lines[line - 1])
    return int(after[0]) if after else None


class _Switches:
    """Writes a syntax tree again, with switches."""

    def __init__(self, raw: bytes, at: Mapping[tuple[int, int], list[Mutant]]) -> None:
        self._raw, self._at, self.placed = raw, at, set[int]()
        self._line_starts = [0, *(match.end() for match in re.finditer(b"\n", raw))]

    def of(self, node: tree_sitter.Node) -> bytes:
        """The text of a node with switches."""
        if node.type in _CONSTANT or node.type == "token_tree" or _is_const(node):
            return self._raw[node.start_byte : node.end_byte]
        write = getattr(self, f"_{node.type}", None)
        text: bytes | None = write(node) if write else None
        if text is None:
            return self._children(node)
        lines = self._raw.count(b"\n", node.start_byte, node.end_byte)
        return text + b"\n" * (lines - text.count(b"\n"))

    def _children(self, node: tree_sitter.Node, changed: Mapping[int, bytes] | None = None) -> bytes:
        """The text of a node, assembled from its children; `changed` replaces the text of some, by node id."""
        parts, end = [], node.start_byte
        for child in node.children:
            parts.append(self._raw[end : child.start_byte])
            parts.append((changed or {}).get(child.id) or self.of(child))
            end = child.end_byte
        parts.append(self._raw[end : node.end_byte])
        return b"".join(parts)

    def _mutants(self, node: tree_sitter.Node | None, *genres: str) -> list[Mutant]:
        """The mutants of these genres that start at a node's position."""
        if node is None:
            return []
        row = node.start_point[0]
        column = len(self._raw[self._line_starts[row] : node.start_byte].decode()) + 1
        found = [each for each in self._at.get((row + 1, column), []) if each.genre in genres]
        self.placed.update(each.number for each in found)
        return found

    def _binary_expression(self, node: tree_sitter.Node) -> bytes | None:
        left, operator, right = _binary(node)
        found = self._mutants(operator, "BinaryOperator")
        if not found:
            return None
        own, a, b = operator.type, self.of(left), self.of(right)
        if own in ("&&", "||"):
            on = _on(found[0])
            return b"((((%b) ^ %b) %b ((%b) ^ %b)) ^ %b)" % (a, on, own.encode(), b, on, on)
        if _can_repeat(a + b):
            return _choice(found, lambda op: b"(%b) %b (%b)" % (a, op, b), own)
        pair = b"(&(%b), &(%b))" if own in _COMPARISONS else b"(%b, %b)"
        chosen = _choice(found, lambda op: b"mutant_l %b mutant_r" % op, own)
        return b"(match %b { (mutant_l, mutant_r) => %b })" % (pair % (a, b), chosen)

    def _compound_assignment_expr(self, node: tree_sitter.Node) -> bytes | None:
        left, operator, right = _binary(node)
        found = self._mutants(operator, "BinaryOperator")
        if not found:
            return None
        a, b = _one_line(self._raw[left.start_byte : left.end_byte]), self.of(right)
        if _can_repeat(b):
            return _choice(found, lambda op: b"%b %b (%b)" % (a, op, b), operator.type)
        chosen = _choice(found, lambda op: b"%b %b mutant_r" % (a, op), operator.type)
        return b"(match %b { mutant_r => %b })" % (b, chosen)

    def _unary_expression(self, node: tree_sitter.Node) -> bytes | None:
        found = self._mutants(node, "UnaryOperator")
        if not found:
            return None
        operator, operand = node.children[0].type.encode(), self.of(node.children[-1])
        return b"(match %b { mutant_v => if %b { mutant_v } else { %b mutant_v } })" % (
            operand, _on(found[0]), operator,
        )  # fmt: skip

    def _match_arm(self, node: tree_sitter.Node) -> bytes | None:
        pattern = node.child_by_field_name("pattern")
        assert pattern is not None
        guard = pattern.child_by_field_name("condition")
        arm = self._mutants(node, "MatchArm") if _has_rest(node) else []
        guards = self._mutants(guard, "MatchArmGuard")
        if not arm and not guards:
            return None
        if guard is not None and guard.type in ("let_chain", "let_condition"):
            self.placed -= {each.number for each in (*arm, *guards)}
            return None
        condition = b"true" if guard is None else b"(%b)" % self.of(guard)
        for mutant in guards:
            on = _on(mutant)
            condition = (b"(%b || %b)" if mutant.replacement == "true" else b"(%b && !%b)") % (condition, on)
        for mutant in arm:
            condition = b"(%b && !%b)" % (condition, _on(mutant))
        if guard is None:
            text = self._children(pattern) + b" if " + condition
        else:
            text = self._children(pattern, {guard.id: condition})
        return self._children(node, {pattern.id: text})

    def _field_initializer_list(self, node: tree_sitter.Node) -> bytes | None:
        base = next((child for child in node.children if child.type == "base_field_initializer"), None)
        if base is None:
            return None
        of_base = _one_line(self._raw[base.start_byte + 2 : base.end_byte])
        changed = {}
        for child in node.children:
            name = child.child_by_field_name("field") or (child.children[0] if child.children else None)
            if name is None or not (found := self._mutants(child, "StructField")):
                continue
            value = child.child_by_field_name("value")
            label = self._raw[name.start_byte : name.end_byte]
            text = label if value is None else self.of(value)
            on = _on(found[0])
            changed[child.id] = b"%b: if %b { (%b).%b } else { %b }" % (label, on, of_base, label, text)
        return self._children(node, changed) if changed else None

    def _function_item(self, node: tree_sitter.Node) -> bytes | None:
        body, returned = node.child_by_field_name("body"), node.child_by_field_name("return_type")
        # A mutant's return value would have another type than the body's `impl Trait` value.
        if body is None or (returned is not None and b"impl " in (returned.text or b"")):
            return None
        first = next((child for child in body.named_children if "comment" not in child.type), None)
        found = self._mutants(first, "FnValue")
        if first is None or not found:
            return None
        returns = b"".join(b"if %b { return %b; } " % (_on(each), each.replacement.encode()) for each in found)
        return self._children(node, {body.id: self._children(body, {first.id: returns + self.of(first)})})


def _binary(node: tree_sitter.Node) -> tuple[tree_sitter.Node, tree_sitter.Node, tree_sitter.Node]:
    """The left side, the operator and the right side."""
    left, operator, right = (node.child_by_field_name(name) for name in ("left", "operator", "right"))
    if left is None or operator is None or right is None:
        raise ValueError(f"an expression without operands: {node}")
    return left, operator, right


def _on(mutant: Mutant) -> bytes:
    return f"{_SWITCH}({mutant.number})".encode()


def _choice(found: list[Mutant], written: Any, own: str) -> bytes:
    """An expression that uses a mutant's operator if its switch is on, else its own."""
    parts = [b"if %b { %b }" % (_on(each), _one_line(written(each.replacement.encode()))) for each in found]
    return b"(%b else { %b })" % (b" else ".join(parts), written(own.encode()))


def _can_repeat(operands: bytes) -> bool:
    return _SWITCH.encode() not in operands and b"//" not in operands and len(operands) <= _REPEATED_BYTES_MAX


def _one_line(text: bytes) -> bytes:
    return text.replace(b"\n", b" ")


def _has_rest(arm: tree_sitter.Node) -> bool:
    """Whether the match expression of an arm has a catch-all arm."""
    arms = [] if arm.parent is None else [each for each in arm.parent.children if each.type == "match_arm"]
    patterns = [pattern.text or b"" for each in arms if (pattern := each.child_by_field_name("pattern"))]
    return any(re.fullmatch(rb"_|[a-z]\w*", pattern) for pattern in patterns)


def _is_const(node: tree_sitter.Node) -> bool:
    """Whether a node is a `const` function, which may run at compile time, where switches cannot be read."""
    if node.type != "function_item":
        return False
    modifiers = next((child for child in node.children if child.type == "function_modifiers"), None)
    return modifiers is not None and any(child.type == "const" for child in modifiers.children)
