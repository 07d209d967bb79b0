"""Every command, its arguments and its options: what `--help` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import click

from securefl.commands.main import cli


class Page(NamedTuple):
    """A command by its full name, such as `securefl party init`."""

    name: str
    command: click.Command


def commands(group: click.Group = cli, name: str = "securefl") -> Iterator[Page]:
    """Each command, and each command inside a group behind the group."""
    context = click.Context(group)
    for word in group.list_commands(context):
        found = group.get_command(context, word)
        if found is not None and not found.hidden:
            yield Page(f"{name} {word}", found)
            if isinstance(found, click.Group):
                yield from commands(found, f"{name} {word}")


def page() -> str:
    """The page of all commands."""
    parts = [f"# Every command\n\n{_help('securefl', cli)}\nWhat `securefl COMMAND --help` prints:\n"]
    for name, command in commands():
        parts.append(f"## `{name}` {{#{name.replace(' ', '-')}}}\n\n{_help(name, command)}")
    return "\n".join(parts)


def _help(name: str, command: click.Command) -> str:
    told = command.get_help(click.Context(command, info_name=name, terminal_width=100))
    return f"```text\n{told}\n```\n"
