"""The HTML page that shows runs side by side (see `pages`): the answer, all curves, differences, tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securefl.report.pages import APART, Picture, environment
from securefl.report.run_page import TESTED
from securefl.report.style import Look

_TEMPLATE: Final = "compare.html.j2"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A series in numbers, as text. epsilon: by party."""

    label: str
    look: Look
    models: str
    rounds: str
    accuracy: str
    megabytes_up: str
    megabytes_down: str
    epsilon: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparePage:
    """The contents of the page.

    runs: the names of the runs. differences: each key with its value in each run, as text. differing, tests,
    untested, notes: sentences. configs: the study of each run, by name. personal: whether accuracies of
    personal models are shown, which are not for publication.
    """

    runs: Sequence[str]
    answer: str
    differing: str
    picture: Picture
    differences: Sequence[tuple[str, Sequence[str]]]
    tests: Sequence[str]
    untested: Sequence[str]
    notes: Sequence[str]
    rows: Sequence[Row]
    configs: Mapping[str, str]
    measure: str
    reproduce: str
    personal: bool


def render(page: ComparePage) -> str:
    """Return the page as one HTML text."""
    return environment().get_template(_TEMPLATE).render(page=page, apart=APART, tested=TESTED)
