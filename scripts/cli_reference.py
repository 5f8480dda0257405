"""Write usage, options and examples of every command into the pages about the command line.

python scripts/cli_reference.py            exit code 1 if a page is stale
python scripts/cli_reference.py --write    bring the pages up to date

What a command has to say in its `--help` is copied from there. Everything else is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.app import COMMANDS, EXIT_CODES, GROUPS, load_command
from holdfast.cli.parser.build import CliCommand, build_command

ROOT = Path(__file__).resolve().parent.parent
OVERVIEW = ROOT / "docs/reference/cli.md"
PAGES = [OVERVIEW, *sorted((ROOT / "docs/reference/cli").glob("*.md"))]

BLOCK = re.compile(
    r"(?<=<!-- )(\w+)(?P<name>(?: \w+)?): written by scripts/cli_reference.py -->\n"
    r".*?(?=<!-- end -->)",
    re.DOTALL,
)

COMMON = {"--json", "--store", "--key", "--redact"}
"""Options of every command. The overview explains them once, and `--tenant` too."""


def list_commands() -> dict[str, str]:
    """Return the commands by name, with the path of each: those of their own name, and defaults."""
    defaults = {
        name: group.commands[group.default] for name, group in GROUPS.items() if group.default
    }
    return COMMANDS | defaults


def write_command(name: str) -> str:
    """Return what `holdfast NAME --help` says, as Markdown."""
    command = build_command(load_command(list_commands()[name]), name)
    rows = list(list_options(command))
    arguments = [
        each.argument.metavar
        if each.required or each.argument.is_store
        else f"[{each.argument.metavar}]"
        for each in command.positions
    ]
    usage = " ".join(["$ holdfast", name, *arguments, *(["[OPTIONS]"] if rows else [])])
    parts = [f"```console\n{usage}\n```", join_lines(command.help or "")]
    if rows:
        parts.append("\n".join(["| Option | |", "| --- | --- |", *rows]))
    examples = "\n".join(f"$ {example}" for example in command.examples)
    parts.append(f"```console\n{examples}\n```")
    return "\n\n".join(parts)


def join_lines(text: str) -> str:
    """Return paragraphs of a docstring, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def list_options(command: CliCommand) -> Iterator[str]:
    """Yield a table row for each option that isn't one of every command."""
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        is_common = option.opts[0] in COMMON and command.name not in ("demo", "crashtest")
        if (is_common and not option.required) or is_usual_tenant(option):
            continue
        names = [*option.opts, *option.secondary_opts]
        value = (
            ""
            if option.is_flag
            else f" {option.metavar or option.opts[0].rpartition('-')[2].upper()}"
        )
        shown = ", ".join([f"`{names[0]}{value}`", *(f"`{name}`" for name in names[1:])])
        yield f"| {shown} | {describe_option(option)} |".replace("  ", " ")


def is_usual_tenant(option: click.Option) -> bool:
    """Return whether it is `--tenant` with its usual meaning."""
    return option.opts[0] == "--tenant" and option.default == "default"


def describe_option(option: click.Option) -> str:
    """Return the help of an option as sentences, with its choices and its default."""
    text = (option.help or "").replace(" For example 30s, 5m, 12h or 60d.", "")
    notes = dict(re.findall(r"(default|env): ([^;\]]+)", text))
    text = re.sub(r" *\[(?:default|env): [^\]]+\]", "", text).strip()
    if isinstance(option.type, click.Choice):
        text += f" One of {', '.join(f'`{each}`' for each in option.type.choices)}."
    if "default" in notes:
        text += f" Default: {notes['default']}."
    if "env" in notes:
        text += f" Or set `{notes['env']}`."
    names = r"(?<![`\w-])(--[a-z][a-z-]+|HOLDFAST_\w+|__\w+__)"
    return re.sub(names, r"`\1`", text).replace("|", "\\|")


def write_groups() -> str:
    """Return the table of commands in groups, each with its other name."""
    places = {
        name: "" if page == OVERVIEW else page.relative_to(OVERVIEW.parent).as_posix()
        for page in PAGES
        for name in re.findall(r"^## `holdfast (\w+)`$", page.read_text(encoding="utf-8"), re.M)
    }
    rows = ["| In a group | Alone | |", "| --- | --- | --- |"]
    for noun, group in GROUPS.items():
        for verb, path in group.commands.items():
            name = path.rpartition(".")[2]
            command = build_command(load_command(path), name)
            summary = (command.help or "").partition("\n")[0]
            link = f"[`holdfast {name}`]({places.get(name, '')}#holdfast-{name})"
            rows.append(f"| `holdfast {noun} {verb}` | {link} | {summary} |")
    return "\n".join(rows)


def write_exit_codes() -> str:
    """Return the table of exit codes."""
    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["| Exit code | Meaning |", "| --- | --- |", *rows])


def write_block(found: re.Match[str]) -> str:
    """Return a block of a page as it should be."""
    kind, name = found[1], found["name"].strip()
    text = {"groups": write_groups, "exit_codes": write_exit_codes}.get(
        kind, lambda: write_command(name)
    )()
    return f"{found[0].partition('-->')[0]}-->\n\n{text}\n\n"


def main() -> int:
    stale = False
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        wanted = BLOCK.sub(write_block, text)
        if text == wanted:
            continue
        if "--write" in sys.argv[1:]:
            page.write_text(wanted, encoding="utf-8")
        else:
            print(
                f"{page.relative_to(ROOT)} is stale; run: python scripts/cli_reference.py --write"
            )
            stale = True
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
