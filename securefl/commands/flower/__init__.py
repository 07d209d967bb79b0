"""The commands `flower`: `check`."""

from __future__ import annotations

import click

from securefl.commands.flower.check import check
from securefl.commands.printing import Group


@click.group(cls=Group, epilog="Example:  securefl flower check examples/flower_secure_grid")
def flower() -> None:
    """Check a Flower app before it runs on secure sums.

    \b
    securefl flower check APP     say what would be refused: terms, strategy, layout, metrics, weights
    """


flower.add_command(check)
