"""What a person is asked before a party agrees to something."""

from __future__ import annotations

import sys

import click


def agreed(question: str) -> bool:
    """Ask on stderr for a yes or a no on stdin, where all but a yes is a no.

    Raises ConfigError where nobody answers: stdin is closed, or at its end.
    """
    from securefl.core.errors import ConfigError

    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    # Not click.confirm: it ends the process without a word at the end of stdin, and with a traceback where
    # there is no stdin.
    answer = "" if sys.stdin is None else sys.stdin.readline()
    if not answer:
        click.echo(err=True)
        raise ConfigError("Expected an answer on stdin, got its end: nothing was changed. Agree with --yes.")
    return answer.strip().lower() in ("y", "yes")
