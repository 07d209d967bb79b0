"""Lists how a table's studies differ from its paper: as found in the studies, and as noted in the table."""

from __future__ import annotations

from collections.abc import Iterator

from securefl.published.table import Part, Table
from securefl.study.config import Arm, Study
from securefl.sweep.cells import show, value_at


def differences(table: Table) -> tuple[str, ...]:
    """A sentence for each difference of data, scale or method. Parts with the same difference share one."""
    found: dict[str, list[str]] = {}
    for part in table.parts:
        for sentence in _of_part(part):
            found.setdefault(sentence, []).append(part.name)
    everywhere = [part.name for part in table.parts]
    derived = [said if own == everywhere else f"{', '.join(own)}: {said}" for said, own in found.items()]
    return (*derived, *table.differences)


def _of_part(part: Part) -> Iterator[str]:
    study = part.study
    for key, published in part.setting.items():
        yield from _told(key, published, value_at(study, key, study.arms[0]))
    seeds = len(study.study.seeds)
    if part.seeds is None:
        yield f"Seeds: {seeds}; the paper does not say how many it ran."
    elif seeds != part.seeds:
        yield f"Seeds: {seeds}; published are {part.seeds}."
    for row in part.rows:
        for key, published in row.options.items():
            here = value_at(study, f"arm.{key}", _arm(study, row.arm))
            yield from (f"{row.label}: {said}" for said in _told(key, published, here))


def _told(key: str, published: object, here: object) -> Iterator[str]:
    if show(here) != show(published):
        yield f"{key} = {show(here)}; published is {show(published)}."


def _arm(study: Study, name: str) -> Arm:
    return next(arm for arm in study.arms if arm.name == name)
