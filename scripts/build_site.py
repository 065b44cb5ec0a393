"""Builds the documentation site into target/site: python scripts/build_site.py

The pages are the repository's own Markdown files. This program copies them, with the files that they link to, to
target/site-source, and generates the reference of Python modules from their docstrings, the reference of commands from
their help, and the list of decisions. Then mkdocs builds the site with mkdocs.yml; every warning is an error.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click

import chronotile
from check_docs import LINK

ROOT = Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "target" / "site-source", ROOT / "target" / "site"
PAGES = ("*.md", "docs/*.md", "docs/decisions/*.md", "docs/studies/*.md", "bench/README.md", "tests/data/README.md")
MODULES = (
    "chronotile",
    "chronotile.apdb",
    "chronotile.historian",
    "chronotile.jobs",
    "chronotile.events",
    "chronotile.sky",
    "chronotile_tools.lab",
    "chronotile_tools.load",
    "chronotile_tools.ops",
)


def gather_pages() -> None:
    """Copy every page, and every file of the repository that a page links to."""
    for page in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        text = page.read_text(encoding="utf-8")
        for match in LINK.finditer(text):
            target = (page.parent / match["target"].split("#")[0]).resolve()
            if target.is_file() and target.suffix != ".md" and target.is_relative_to(ROOT):
                write(target.relative_to(ROOT), target.read_bytes())
        text = re.sub(r"\((docs/)?decisions/\)", r"(\1decisions/index.md)", text)
        write(page.relative_to(ROOT), text.encode())


def write(path: Path | str, content: bytes) -> None:
    """Write a file of the site's source."""
    (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
    (SOURCE / path).write_bytes(content)


def decisions() -> str:
    """The list of decisions: a link with the title of each."""
    lines = ["# Decisions", "", "Each page describes a problem, the measurements, and the decision.", ""]
    for page in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({page.name})")
    return "\n".join(lines) + "\n"


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The name and the help of a command and of all commands below it."""
    if command.hidden:
        return
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, info_name=name, parent=context))


def command_reference() -> str:
    """A page with the `--help` of each command in a section of its own."""
    from chronotile.cli.main import cli

    top = click.Context(cli, info_name="chronotile", terminal_width=100, max_content_width=100)
    parts = [
        "# Every command",
        "",
        "The output of `--help` for each command. [Command line](../docs/cli.md) is the guide.",
        "",
    ]
    for path, text in commands(cli, top):
        parts += [f"{'##' if path.count(' ') < 2 else '###'} {path}", "", "```text", text, "```", ""]
    return "\n".join(parts)


def kind_of(value: object) -> str:
    """The section of a module's page that a name belongs to."""
    if isinstance(value, ModuleType):
        return "Modules"
    if inspect.isclass(value):
        return "Exceptions" if issubclass(value, BaseException) else "Classes"
    return "Functions" if callable(value) else "Constants"


def public_names(module: ModuleType) -> list[str]:
    """Public names of a module, without those that are on the page of `chronotile` already."""
    names = [name for name in getattr(module, "__all__", dir(module)) if not name.startswith("_")]
    return names if module is chronotile else [name for name in names if name not in chronotile.__all__]


def described(module: str, name: str, value: object) -> list[str]:
    """Markdown lines that insert the docstring of a name into a page."""
    owner, _, method = getattr(value, "__qualname__", "").partition(".")
    if method:
        return [f"### {name}", "", f"A short name for [`{owner}.{method}`][{module}.{owner}.{method}].", ""]
    # If a function has the same name as a submodule, `module.name` would resolve to the submodule.
    path = f"{module}.{name}"
    if path in sys.modules:
        path = f"{getattr(value, '__module__', module)}.{name}"
    return [f"::: {path}", "    options:", "      heading_level: 3", ""]


def module_reference(name: str) -> str:
    """The page of a module: its docstring, then each public name by kind."""
    module = importlib.import_module(name)
    public = public_names(module)
    summary = inspect.getdoc(module) or ""
    parts = [f"# {name}", "", summary.split("\n\n")[0], ""]
    for kind in ("Functions", "Classes", "Exceptions", "Constants"):
        names = [each for each in public if kind_of(getattr(module, each)) == kind]
        if kind == "Constants" or not names:
            continue
        parts += [f"## {kind}", ""]
        parts += [line for each in names for line in described(name, each, getattr(module, each))]
    return "\n".join(parts)


def python_reference() -> None:
    """A page for each public module, and a page that lists them."""
    lines = ["# Python modules", "", "Generated from docstrings. [Python](../docs/python.md) is the guide.", ""]
    for name in MODULES:
        write(f"reference/{name}.md", module_reference(name).encode())
        summary = (inspect.getdoc(importlib.import_module(name)) or "").splitlines()[0]
        lines.append(f"- [`{name}`]({name}.md): {summary}")
    write("reference/python.md", "\n".join(lines + [""]).encode())


def main() -> None:
    """Gather the pages and build the site."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    gather_pages()
    write("docs/decisions/index.md", decisions().encode())
    write("reference/commands.md", command_reference().encode())
    python_reference()
    write("assets/iframe-worker.js", (ROOT / "scripts" / "iframe-worker.js").read_bytes())
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\nThe input of mkdocs is in {SOURCE.relative_to(ROOT)}.")
    foreign = [str(page) for page in SITE.rglob("*.html") if re.search(r'<script[^>]* src="https?:', page.read_text())]
    if foreign:
        raise SystemExit(f"pages load scripts of other hosts: {', '.join(foreign)}")
    print(f"site: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
