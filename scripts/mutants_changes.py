"""Generates the mutants of a Python module."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd, ast.Pow: ast.Mult,
}  # fmt: skip
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
_STATEMENT_CHARS_MAX = 240
_WORDS_METHODS = ("__repr__", "__str__")
_NOT_CODE = ("annotation", "returns", "decorator_list", "type_params", "type_comment")
_COMPOUND = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try)


@dataclass(frozen=True)
class Place:
    """A node of a module, the statement that contains it, and the outermost function around it, if any."""

    node: ast.AST
    statement: ast.stmt
    function: ast.FunctionDef | ast.AsyncFunctionDef | None


@dataclass(frozen=True)
class Mutant:
    """One change of a module.

    Attributes
    ----------
    lines : range
        The lines of its statement, without those of nested statements.
    statement, change : str
        The beginning of the statement's first line, and "before -> after". Identical changes of one statement are
        numbered.
    function : tuple of str and int, or None
        Name and first line of the outermost function around it; None for code that runs when the module is imported.
    names : frozenset of str
        Names that its statement defines, for code that runs when the module is imported.
    tree : Callable
        Returns the syntax tree of the changed module.
    """

    lines: range
    statement: str
    change: str
    function: tuple[str, int] | None
    names: frozenset[str]
    tree: Callable[[], ast.Module]


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module."""
    tree = ast.parse(source)
    found = []
    times: dict[tuple[str, str], int] = {}
    for number, place in enumerate(_places(tree)):
        for change, changed in enumerate(_changes(place.node)):
            # Parsing the same source again yields the same nodes in the same order.
            def mutated(number: int = number, change: int = change) -> ast.Module:
                fresh = ast.parse(source)
                node = list(_places(fresh))[number].node
                _become(node, list(_changes(node))[change])
                return ast.fix_missing_locations(fresh)

            function = place.function
            statement = _shortened(_shown(place.statement))
            words = f"{_shown(place.node)} -> {_shown(changed)}"
            times[statement, words] = time = times.get((statement, words), 0) + 1
            found.append(
                Mutant(
                    lines=_own_lines(place.statement),
                    statement=statement,
                    change=words if time == 1 else f"{words} (number {time})",
                    function=None if function is None else (function.name, _first_line(function)),
                    names=defined(place.statement) if function is None else frozenset(),
                    tree=mutated,
                )
            )
    return found


def _become(node: ast.AST, other: ast.AST) -> None:
    places = ("lineno", "end_lineno", "col_offset", "end_col_offset")
    location = {name: getattr(node, name) for name in places if hasattr(node, name)}
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update({**location, **other.__dict__})


def _shortened(text: str) -> str:
    return text if len(text) <= _STATEMENT_CHARS_MAX else f"{text[:_STATEMENT_CHARS_MAX]}..."


def _shown(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The first line as in the function's code object, which includes decorators."""
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _own_lines(statement: ast.stmt) -> range:
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    if isinstance(statement, _COMPOUND):
        body = statement.body[0]
        last = max(first, min([body.lineno, *(each.lineno for each in getattr(body, "decorator_list", []))]) - 1)
    return range(first, last + 1)


def defined(statement: ast.stmt) -> frozenset[str]:
    """Names that a statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return frozenset([statement.name])
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return frozenset(node.id for node in stored)


def _places(tree: ast.Module) -> Iterator[Place]:
    """Nodes whose change may change what the module does; excludes types, docstrings and the text of messages."""
    stack = [Place(statement, statement, None) for statement in reversed(tree.body)]
    while stack:
        place = stack.pop()
        node = place.node
        if _is_words(node):
            if isinstance(node, ast.Raise):
                yield place  # The statement itself can be removed.
            continue
        yield place
        inner: list[Place] = []
        for name, value in ast.iter_fields(node):
            if name in _NOT_CODE:
                continue
            function = place.function
            if function is None and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name == "body":
                function = node
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    inner.append(Place(child, child, function))
                elif isinstance(child, ast.AST):
                    inner.append(Place(child, place.statement, function))
        stack += reversed(inner)


def _is_words(node: ast.AST) -> bool:
    """Whether to leave everything inside unchanged."""
    if isinstance(node, ast.FunctionDef):
        return node.name in _WORDS_METHODS
    if isinstance(node, ast.Assign):
        # A type alias.
        is_union = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
        return node.col_offset == 0 and (is_union or isinstance(node.value, ast.Subscript))
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom | ast.Assert)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.stmt):
        yield from _changes_of_statement(node)
    elif isinstance(node, ast.expr):
        yield from _changes_of_operator(node)
        yield from _changes_of_value(node)
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(
        node.test, ast.Name | ast.Attribute | ast.Call | ast.Subscript
    ):
        opposite = copy.deepcopy(node)
        opposite.test = ast.UnaryOp(ast.Not(), copy.deepcopy(node.test))
        yield opposite


def _changes_of_statement(node: ast.stmt) -> Iterator[ast.AST]:
    """Changes of a whole statement: another operator, a return without its value, or removal."""
    if isinstance(node, ast.AugAssign) and type(node.op) in _BINARY:
        other = copy.deepcopy(node)
        other.op = _BINARY[type(node.op)]()
        yield other
    if isinstance(node, ast.Return) and node.value is not None and not _is_none_or_false(node.value):
        yield ast.Return(ast.Constant(None))
    is_stored = isinstance(node, ast.Assign) and all(
        isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets
    )
    is_done = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    if is_stored or is_done or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete):
        yield ast.Pass()


def _is_none_or_false(node: ast.expr) -> bool:
    """Whether a value is None or False: replacing it by None would not change its truth value."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _changes_of_operator(node: ast.expr) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            compare = copy.deepcopy(node)
            compare.ops[place] = _COMPARE[type(operator)]()
            yield compare
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        if not any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in (node.left, node.right)):
            binary = copy.deepcopy(node)
            binary.op = _BINARY[type(node.op)]()
            yield binary
    elif isinstance(node, ast.BoolOp):
        boolean = copy.deepcopy(node)
        boolean.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield boolean
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield copy.deepcopy(node.operand)


def _changes_of_value(node: ast.expr) -> Iterator[ast.AST]:
    if isinstance(node, ast.IfExp):
        yield ast.IfExp(copy.deepcopy(node.test), copy.deepcopy(node.orelse), copy.deepcopy(node.body))
    elif isinstance(node, ast.Call):
        yield from _changes_of_call(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        # Adding one to a large float would hardly matter.
        yield ast.Constant(2 * node.value if isinstance(node.value, float) and node.value > 1_000 else node.value + 1)
        if isinstance(node.value, int):
            yield ast.Constant(node.value - 1)


def _changes_of_call(node: ast.Call) -> Iterator[ast.AST]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in _CALLS:
        other = copy.deepcopy(node)
        if isinstance(other.func, ast.Name):
            other.func.id = _CALLS[name]
        elif isinstance(other.func, ast.Attribute):
            other.func.attr = _CALLS[name]
        yield other
        return
    kinds = (ast.Name, ast.Attribute, ast.Constant)
    for place, (left, right) in enumerate(zip(node.args, node.args[1:], strict=False)):
        is_pair = type(left) is type(right) and isinstance(left, kinds) and ast.dump(left) != ast.dump(right)
        if is_pair and name != "isinstance" and not (_is_sentence(left) and _is_sentence(right)):
            swapped = copy.deepcopy(node)
            swapped.args[place : place + 2] = reversed(swapped.args[place : place + 2])
            yield swapped


def _is_sentence(node: ast.expr) -> bool:
    """Whether a string constant contains spaces, as messages do."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
