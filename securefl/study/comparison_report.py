"""Tells a comparison of runs: one table for the terminal and the HTML page, and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from securefl.accounting.figures import in_words, plain
from securefl.core.release import PARTIES
from securefl.report import plots
from securefl.report.accuracy import MEASURES, Measure
from securefl.report.pages import APART, Picture, environment, number_text
from securefl.report.run_page import TESTED
from securefl.report.significance import with_interval
from securefl.report.style import looks
from securefl.study.comparison import Comparison


def shown(value: Any) -> str:
    """A value of a configuration in one line, as TOML has it."""
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case float() | int():
            return f"{value:g}"
        case list():
            return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def differing(found: Comparison) -> list[list[str]]:
    """A table of the keys whose values differ: a head, then a row for each key."""
    rows = [[key, *map(shown, values)] for key, values in found.differences.items()]
    return [["key", *(run.name for run in found.runs)], *rows]


HEAD = ("series", "models", "rounds", "accuracy", "MB up", "MB down", "epsilon", "beside the first run")


def rows(found: Comparison) -> list[tuple[str, ...]]:
    """The answer: a row under `HEAD` for each arm, global models first, and then the highest accuracy."""
    ranked = found.series.sort_values("accuracy", ascending=False, kind="stable")
    ranked = ranked.sort_values("models", kind="stable")
    arms: Iterable[Any] = ranked.itertuples()
    epsilons = ranked[[f"epsilon_{party}" for party in PARTIES]].map(in_words).to_numpy()
    return [
        (
            *(str(own.Index), own.models, str(own.rounds), with_interval(own.accuracies)),
            *map(number_text, (own.megabytes_up, own.megabytes_down)),
            ", ".join(map(" ".join, zip(PARTIES, spent, strict=True))),
            gap_words(own),
        )
        for own, spent in zip(arms, epsilons, strict=True)
    ]


def gap_words(own: Any) -> str:
    """How an arm ended beside its opponent in the first run, with the test's p if there is one."""
    if math.isnan(own.pairs):
        return "–"
    if not own.pairs:
        return f"no seed with an accuracy here and in {own.other}"
    gap = f"{own.points:+.1f} points beside {own.other}, {own.of}: {own.pairs:.0f}"
    return gap if math.isnan(own.p) else f"{gap}, p = {own.p:.2g}"


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
