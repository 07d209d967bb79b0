"""The command `figure`: accuracy against epsilon, as a figure of a paper."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.choices import FILE, NEW_FILE, PATH, with_private
from securefl.commands.printing import echo

_EXAMPLES = """\b
Examples:  securefl figure runs/sweep -o tradeoff.pdf
           securefl figure runs/record runs/client runs/plain -o levels.svg --width 84mm
           securefl figure runs/sweep -o tradeoff.png --style paper.mplstyle
"""


@click.command(epilog=_EXAMPLES)
@click.argument("folders", metavar="RUN|SWEEP...", nargs=-1, required=True, type=PATH)
@click.option("-o", "--out", type=NEW_FILE, required=True, help="The file to write: .pdf, .svg or .png.")
@click.option("--width", default="3.3in", show_default=True, help="Its width in the paper, in in, cm or mm.")
@click.option(
    "--style",
    type=FILE,
    help="A matplotlib style file: fonts, sizes, colours, lines. It is read as data, never as code.",
)
@with_private
def figure(folders: tuple[Path, ...], out: Path, width: str, style: Path | None, private: bool) -> None:
    """Draw the final accuracy of finished runs and sweeps against their true epsilon.

    Each arm is a line of means over its seeds, with a 95 % band, or with a point for each seed if they are
    fewer than five. The ticks are the epsilons of the data. A RUN without noise is a line across. Epsilons
    per record and per client are side by side, and so are different data. Text is of 8 points at the width
    of the page. The folders are only read. Runs of one source that are tested on different
    records, or by another measure, are refused.
    """
    from securefl.report.paper import inches, require_picture, write_figure
    from securefl.storage.private_folder import NOTICE
    from securefl.sweep.gathered import gather
    from securefl.sweep.paper import drawn

    wide = inches(width)
    require_picture(out)
    found = gather(folders, private=private)
    write_figure(out, drawn(found, width=wide, style=style), NOTICE if private else "")
    for note in found.notes:
        echo(note, err=True)
    echo(f"Figure: {out}")
