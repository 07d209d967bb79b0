"""Tells a comparison of runs: one table for the terminal and the HTML page, and JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from securefl.accounting.figures import in_words, plain
from securefl.core.release import PARTIES
from securefl.report import plots
from securefl.report.accuracy import MEASURES, Measure
from securefl.report.pages import APART, Picture, environment, number_text
from securefl.report.run_page import TESTED
from securefl.report.significance import with_interval
from securefl.report.style import looks
from securefl.storage.texts import show
from securefl.study.comparison import Comparison

if TYPE_CHECKING:
    import pandas as pd


def differing(found: Comparison) -> list[list[str]]:
    """A table of the keys whose values differ: a head, then a row for each key."""
    rows = [[key, *map(show, values)] for key, values in found.differences.items()]
    return [["key", *(run.name for run in found.runs)], *rows]


HEAD = ("series", "models", "rounds", "accuracy", "MB up", "MB down", "epsilon", "beside the first run")


def rows(found: Comparison) -> list[tuple[str, ...]]:
    """The answer: a row under `HEAD` for each arm, global models first, and then the highest accuracy."""
    ranked = found.series.sort_values(["models", "accuracy"], ascending=[True, False])
    return [
        (
            *(str(label), own["models"], str(own["rounds"]), with_interval(own["accuracies"])),
            *(number_text(own[f"megabytes_{way}"]) for way in ("up", "down")),
            ", ".join(f"{party} {in_words(own[f'epsilon_{party}'])}" for party in PARTIES),
            gap_words(own),
        )
        for label, own in ranked.iterrows()
    ]


def gap_words(own: pd.Series[Any]) -> str:
    """How an arm ended beside its opponent in the first run, with the test's p if there is one."""
    if math.isnan(own["pairs"]):
        return "–"
    if not own["pairs"]:
        return f"no seed with an accuracy here and in {own['other']}"
    gap = f"{own['points']:+.1f} points beside {own['other']}, {own['of']}: {own['pairs']:.0f}"
    return gap if math.isnan(own["p"]) else f"{gap}, p = {own['p']:.2g}"


def page(found: Comparison, reproduce: str) -> str:
    """The HTML page. reproduce: the command that makes it again."""
    worn = looks(found.series.index)
    said = found.runs[0].measure
    by_words = {own.words: own for own in MEASURES.values()}
    measure = by_words.get(said, Measure(said or "of unknown kind", "accuracy", -math.inf))
    picture = Picture(
        name="accuracy",
        title="Accuracy after each round",
        caption=f"All series in one picture. Accuracy is {measure.words}.",
        private=found.personal,
        note="" if found.personal else TESTED,
        draw=lambda width: plots.accuracy(
            found.metrics, looks=worn, label=measure.axis, least=measure.least, width=width
        ),
    )
    return (
        environment()
        .get_template("compare.html.j2")
        .render(
            found=found,
            picture=picture,
            differing=differing(found),
            head=HEAD,
            rows=rows(found),
            looks=worn,
            measure=measure.words,
            reproduce=reproduce,
            apart=APART,
            tested=TESTED,
        )
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison for scripts. An unknown number is null, and an infinite epsilon the text "inf"."""
    names = [run.name for run in found.runs]
    differences = {key: dict(zip(names, own, strict=True)) for key, own in found.differences.items()}
    said: dict[str, Any] = plain(
        {
            "runs": {run.name: str(run.folder) for run in found.runs},
            "not_for_publication": found.personal,
            "differences": differences,
            "notes": found.notes,
            "series": found.series.reset_index().to_dict("records"),
        }
    )
    return said
