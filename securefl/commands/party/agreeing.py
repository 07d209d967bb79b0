"""The yes-or-no question before a party agrees to terms."""

from __future__ import annotations

import sys

import click


def agreed(question: str) -> bool:
    """Ask a question on stderr, and read the answer from stdin. Any answer but a yes is a no.

    Raises ConfigError if there is no answer, because stdin is closed or at its end.
    """
    from securefl.core.errors import ConfigError

    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    # Not click.confirm, which ends the process silently at the end of stdin, and with a traceback if stdin is
    # closed.
    answer = "" if sys.stdin is None else sys.stdin.readline()
    if not answer:
        click.echo(err=True)
        raise ConfigError("Expected an answer on stdin, got its end: nothing was changed. Agree with --yes.")
    return answer.strip().lower() in ("y", "yes")
