"""A study's run over an exchange as one function: for whoever wants its rounds and its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from securefl.engines.apart.waves import Exchange
from securefl.study.export import taken
from securefl.study.folder import study_of
from securefl.study.parties.asking import run_apart


def playing(
    folder: Path, out: Path
) -> Callable[[Exchange, Callable[[Mapping[str, Any]], None]], Mapping[str, NDArray[Any]]]:
    """A function that runs the study of a server's folder, and returns the arrays of its model by name.

    It takes the exchange, and what is told every finished round's record. See `run_apart` for folder and out.
    """

    def play(exchange: Exchange, tell: Callable[[Mapping[str, Any]], None]) -> Mapping[str, NDArray[Any]]:
        run_apart(folder, out, exchange, tell=lambda arm, seed, record: tell(record))
        study = study_of(out)
        learnt = taken(study, out, study.arms[0].name).learnt
        return dict(learnt.tensors())

    return play
