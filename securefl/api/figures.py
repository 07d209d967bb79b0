"""`securefl.figure`: the figure of a paper, as the command `securefl figure` draws it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from securefl.core.errors import ConfigError
from securefl.report.paper import COLUMN, inches
from securefl.sweep.gathered import gather
from securefl.sweep.paper import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(
    *folders: Path | str, width: float | str = COLUMN, style: Path | str | None = None, private: bool = False
) -> Figure:
    """Draw the final accuracy of finished runs and sweeps against their true epsilon.

        >>> import securefl, tempfile
        >>> run = securefl.run("fedlog_digits", out=tempfile.mkdtemp(), progress=False)
        >>> figure = securefl.figure(run.folder, width="84mm")
        >>> float(round(figure.get_figwidth(), 2))
        3.31

    Args:
        folders: those of the runs and sweeps. A run without noise is a line across. Epsilons per record and
            per client have a panel each, and so have different data.
        width: in inches, or a text such as "84mm".
        style: a style file of matplotlib with fonts, sizes, colours and lines. It is read as data.
        private: whether accuracies of personal models are drawn too. The figure is then not for publication.

    Returns:
        The figure of matplotlib, to be changed or saved. A UserWarning for each sentence that its reader must
        know, such as on cells that failed.

    Raises:
        ConfigError: a folder is no finished run or sweep, a run is there twice, no epsilon is finite, or the
            width or the style is invalid.
        DataError: a file of a run is damaged.
    """
    if not folders:
        raise ConfigError('Expected folders of runs or sweeps, got none. Example: figure("runs/sweep")')
    found = gather([Path(folder) for folder in folders], private=private)
    made = drawn(found, width=inches(width), style=None if style is None else Path(style))
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return made
