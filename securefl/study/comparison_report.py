"""Tells a comparison of runs: sentences, the HTML page, and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from securefl.accounting.figures import plain
from securefl.report import plots
from securefl.report.accuracy import MEASURES, Measure
from securefl.report.pages import APART, Picture, environment, number_text
from securefl.report.run_page import TESTED
from securefl.report.style import looks
from securefl.study.comparison import NOT_SET, Comparison, Gap, Series
from securefl.study.publication import PERSONAL

_MOST_NAMED = 3
"""The most differences that a sentence names."""


def answer(found: Comparison) -> str:
    """A sentence on the series with the highest final accuracy, for global and for personal models."""
    kinds = [
        [own for own in found.series if (own.models == PERSONAL) == personal and not math.isnan(own.mean)]
        for personal in (False, True)
    ]
    if not any(kinds):
        return "No series has a final accuracy."
    words = (" of global models", " of personal models") if all(kinds) else ("", "")
    return " ".join(_highest(known, own) for known, own in zip(kinds, words, strict=True) if known)


def _highest(known: Sequence[Series], models: str) -> str:
    first = max(known, key=lambda own: own.mean)
    level = [own for own in known if f"{own.mean:.3f}" == f"{first.mean:.3f}"]
    names = " and ".join(own.label for own in level)
    if len(known) == 1:
        return f"The only series{models}, {names}, ended at an accuracy of {first.mean:.3f}."
    if len(level) == len(known):
        return f"All {len(known)} series{models} ended level, at an accuracy of {first.mean:.3f}."
    return f"Of {len(known)} series{models}, {names} ended highest, at an accuracy of {first.mean:.3f}."


def differing(found: Comparison) -> str:
    """One sentence: which keys of the configurations differ."""
    names = list(found.differences)
    if not names:
        return "The configurations are the same."
    many = f"{len(names)} keys, among them " if len(names) > _MOST_NAMED else ""
    return f"The configurations differ in {many}{', '.join(names[:_MOST_NAMED])}."


def shown(value: Any) -> str:
    """A value of a configuration in one line, as TOML has it."""
    match value:
        case bool():
            return str(value).lower()
        case float() | int():
            return f"{value:g}"
        case list():
            return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def gap_words(own: Gap) -> str:
    """A sentence on the difference of two series, with the test's p if there is one."""
    if math.isnan(own.points):
        return f"{own.first} and {own.second} share no seed with a final accuracy."
    gap = "level"
    if abs(own.points) >= 0.05:
        gap = f"{abs(own.points):.1f} points {'higher' if own.points > 0 else 'lower'}"
    mean = f"{own.first} ended {gap} {'with' if gap == 'level' else 'than'} {own.second}"
    if own.pairs > 1:
        mean += f" (mean of {own.pairs} {'pairs' if own.paired else 'seeds of each'})"
    return f"{mean}." if own.p is None else f"{mean}, p = {own.p:.2g}."


def untested(found: Comparison) -> list[str]:
    """Sentences on why differences have no p, each once."""
    return [f"No test: {why}." for why in dict.fromkeys(own.why for own in found.gaps if own.why)]


def accuracy(own: Series) -> str:
    """The mean final accuracy, with the lowest and the highest of several seeds."""
    values = [value for value in own.accuracies.values() if not math.isnan(value)]
    if len(values) < len(own.accuracies) or not values:
        return "not known"
    mean = number_text(float(np.mean(values)), 3)
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def page(found: Comparison, reproduce: str) -> str:
    """The HTML page. reproduce: the command that makes it again."""
    worn = looks(own.label for own in found.series)
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
            runs=[run.name for run in found.runs],
            answer=answer(found),
            differing=differing(found),
            picture=picture,
            differences=[(key, [*map(shown, values)]) for key, values in found.differences.items()],
            tests=[*map(gap_words, found.gaps)],
            untested=untested(found),
            notes=found.notes,
            rows=[{**vars(own), "look": worn[own.label], "accuracy": accuracy(own)} for own in found.series],
            configs={run.name: run.text for run in found.runs},
            measure=measure.words,
            reproduce=reproduce,
            personal=found.personal,
            apart=APART,
            tested=TESTED,
        )
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison for scripts. An unknown number is null, and an infinite epsilon the text "inf"."""
    names = [run.name for run in found.runs]
    said: dict[str, Any] = plain(
        {
            "runs": {run.name: str(run.folder) for run in found.runs},
            "answer": answer(found),
            "untested": untested(found),
            "not_for_publication": found.personal,
            "differences": {
                key: {run: None if v == NOT_SET else v for run, v in zip(names, values, strict=True)}
                for key, values in found.differences.items()
            },
            "notes": found.notes,
            "series": [{**vars(own), "final_accuracy": own.mean} for own in found.series],
            "tests": [{**vars(own), "sentence": gap_words(own)} for own in found.gaps],
        }
    )
    return said
