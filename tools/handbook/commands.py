"""Every command, its arguments and its options, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

from securefl.commands.main import cli


@dataclass(frozen=True, kw_only=True)
class Page:
    """A command by its full name, such as `securefl party init`."""

    name: str
    command: click.Command

    @property
    def anchor(self) -> str:
        return self.name.replace(" ", "-")


def commands(group: click.Group = cli, name: str = "securefl") -> Iterator[Page]:
    """Each command, and each command inside a group behind the group."""
    context = click.Context(group)
    for word in group.list_commands(context):
        found = group.get_command(context, word)
        if found is None or found.hidden:
            continue
        yield Page(name=f"{name} {word}", command=found)
        if isinstance(found, click.Group):
            yield from commands(found, f"{name} {word}")


def page() -> str:
    """The page of all commands."""
    lines = [
        "# Every command",
        "",
        "`securefl COMMAND --help` prints the same in a terminal. This page is made from the commands.",
        "",
    ]
    for own in commands():
        lines += [
            f"## `{own.name}` {{#{own.anchor}}}",
            "",
            *_help(own.command),
            *_usage(own),
            *_options(own.command),
        ]
        if own.command.epilog:
            lines += ["```", *_examples(own.command.epilog), "```", ""]
    return "\n".join(line.rstrip() if line.startswith("|") else line for line in lines)


def _help(command: click.Command) -> list[str]:
    text = inspect.cleandoc(command.help or "").split("\f")[0]
    shown: list[str] = []
    for part in text.split("\n\n"):
        if part.startswith("\b"):
            shown += ["```", part.removeprefix("\b").strip("\n"), "```", ""]
        else:
            shown += [" ".join(part.split()), ""]
    return shown


def _examples(epilog: str) -> list[str]:
    text = re.sub(r"\s*Examples?:\s*", "", inspect.cleandoc(epilog).replace("\b", ""), count=1)
    return [line.strip() for line in text.splitlines() if line.strip()]


def _usage(own: Page) -> list[str]:
    pieces = own.command.collect_usage_pieces(click.Context(own.command))
    return ["```", " ".join([own.name, *pieces]), "```", ""]


def _options(command: click.Command) -> list[str]:
    rows = [row for one in command.params if (row := _row(one))]
    return ["| option | meaning |", "|---|---|", *rows, ""] if rows else []


def _row(one: click.Parameter) -> str:
    if not isinstance(one, click.Option) or one.hidden:
        return ""
    kind = "" if one.is_flag or one.count else one.make_metavar(click.Context(click.Command(None)))
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    said = [one.help or ""]
    if one.required:
        said.append("It must be given.")
    if one.show_default and one.default not in (None, False, ()):
        said.append(f"By default `{one.default}`.")
    shown = " ".join(part for part in said if part).replace("|", "\\|")
    value = f" `{kind}`".replace("|", "\\|") if kind else ""
    return f"| {names}{value} | {_legible(shown)} |"


def _legible(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("<", "&lt;")
