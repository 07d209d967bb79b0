"""Warnings about a finished run: silent rounds and clients, divergence, and models that learnt nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import isfinite, isnan, nan
from typing import Any, Final, NamedTuple

import numpy as np

from securefl.accounting.figures import counted
from securefl.core.messages import client_name
from securefl.report.accuracy import MEASURES
from securefl.study.arm import ArmRun
from securefl.training.evaluation import constant_accuracy

Records = Sequence[Mapping[str, Any]]
NUMBER = re.compile(r"(?<![\w-])\d+(\.\d+)?(e[+-]?\d+)?")
"""A number. Digits in the name of a client are none."""

_NAMED: Final = 3
"""The most arms or cells that one sentence names beside the first."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A warning about one arm, in a sentence or two that name it.

    learnt: False if the arm has learnt nothing: the model is diverged at the end, or nobody answered in the
    second half of its rounds. True for any other warning.
    """

    arm: str
    text: str
    learnt: bool


class _Found(NamedTuple):
    """One warning about one arm under one seed. kind: warnings of one kind are merged over seeds."""

    kind: str
    words: str
    learnt: bool


def alarms(runs: Sequence[ArmRun], advise: Callable[[ArmRun], str] = lambda run: "") -> tuple[Alarm, ...]:
    """All warnings about these finished arms and seeds. Seeds with the same warning share one.

    advise: says what to change where an arm is no better than a constant answer.
    """
    told = []
    for name in dict.fromkeys(run.arm.name for run in runs):
        own = [run for run in runs if run.arm.name == name]
        by_kind: dict[str, list[tuple[int, _Found]]] = {}
        for run in own:
            for found in _of(run):
                kind = found.words if found.kind == "clients" else found.kind  # each seed has its own clients
                by_kind.setdefault(kind, []).append((run.world.seed, found))
        for seeds in by_kind.values():
            (first, found), *others = seeds
            words = found.words
            if found.kind == "constant" and (remedy := advise(own[0])):
                words = f"{words} {remedy}"
            which = f" (seed {first}{_more(len(others), len(own))})" if len(own) > 1 else ""
            told.append(Alarm(arm=name, text=f"{name}{which}: {words}", learnt=found.learnt))
    return tuple(told)


def once(told: Iterable[tuple[str, str]]) -> list[str]:
    """Sentences of which those that differ in numbers alone are one, which names what the others are about.

    told: pairs of what a sentence is about, such as an arm, and the rest of it.
    """
    alike: dict[str, list[tuple[str, str]]] = {}
    for about, rest in told:
        # Without the seeds, which stand before the colon.
        alike.setdefault(NUMBER.sub("#", rest.partition(": ")[2]), []).append((about, rest))
    return [
        f"{about}{rest}{_likewise([name for name, _ in more])}" for (about, rest), *more in alike.values()
    ]


def _likewise(others: Sequence[str]) -> str:
    named = [*others[:_NAMED], *([f"{len(others) - _NAMED} more"] if len(others) > _NAMED else [])]
    return f" Alike but for numbers: {'; '.join(named)}." if others else ""


def _more(others: int, seeds: int) -> str:
    return f", and alike under {others} more of {seeds} seeds" if others else f", the only one of {seeds}"


def _of(run: ArmRun) -> Iterator[_Found]:
    found = [*_silence(run.records), *_divergence(run), *_clients(run.records)]
    yield from found
    if all(own.learnt for own in found):
        yield from _no_better(run)


def _silence(records: Records) -> Iterator[_Found]:
    """The warning about rounds in which clients were asked and no contribution arrived."""
    asked = [record for record in records if record["asked"]]
    silent = [record for record in asked if not record["answered"]]
    why = _most_frequent(silent)
    if not any(record["answered"] for record in records):
        words = f"nobody answered in any of {counted(len(records), 'round')}: the model is as it began.{why}"
        yield _Found("nobody", words, learnt=False)
        return
    if not silent:
        return
    trailing = len(list(takewhile(lambda record: not record["answered"], reversed(asked))))
    # An arm that stopped in its first half is no run of the study as configured; a later stop is a poor end.
    if 2 * trailing >= len(asked):
        words = (
            f"nobody answered from round {asked[-trailing]['round']} on to the last, round "
            f"{asked[-1]['round']}: the model has not changed since.{why}"
        )
        yield _Found("stopped", words, learnt=False)
    else:
        rounds = counted(len(asked), "round")
        words = f"nobody answered in {len(silent)} of {rounds} ({_listed(silent)}).{why}"
        yield _Found("silent", words, learnt=True)


def _clients(records: Records) -> Iterator[_Found]:
    """The warning that names clients that diverged or are in no sum, such as those FLTrust distrusts."""
    selected = Counter(client_name(k) for record in records for k in {*record["selected"]})
    answered = Counter(client_name(k) for record in records for k in record["answered"])
    why = [
        own
        for record in records
        for own in (*record["abstained"].items(), *record["without_records"].items())
    ]
    diverged = Counter(who for who, reason in why if "diverged" in reason)
    # Under a bound a client that diverged answers, as one without records.
    heard = Counter(
        name
        for record in records
        for name in map(client_name, record["answered"])
        if "diverged" not in record["without_records"].get(name, "")
    )
    # A client that was selected in one of many rounds and lost on the way is no news.
    lost = {
        who: times - heard[who]
        for who, times in sorted(selected.items())
        if diverged[who] or (not answered[who] and times >= min(2, len(records)))
    }
    if not lost or not answered:
        return
    named = [f"{who} in {count} of {counted(selected[who], 'round')}" for who, count in lost.items()]
    words = (
        f"{len(lost)} of {counted(len(selected), 'client')} diverged, or are in no sum: "
        f"{', '.join(named[:5])}{', ...' if len(named) > 5 else ''}."
        f"{_most_often(reason for who, reason in why if who in lost)}"
    )
    yield _Found("clients", words, learnt=True)


def _divergence(run: ArmRun) -> Iterator[_Found]:
    tested = [record for record in run.records if record["accuracy"] is not None]
    bad = [record for record in tested if not _finite(record)]
    if not bad or isnan(floor(run)):
        return
    where = f"{len(bad)} of {len(tested)} tested rounds ({_listed(bad)})"
    if _finite(tested[-1]) or tested[-1]["accuracy"] > floor(run):
        words = f"accuracy or loss is no finite number in {where}: the model diverged there."
        yield _Found("nan", words, learnt=True)
    else:
        words = f"the model diverged: accuracy or loss is no finite number in {where}, the last among them."
        yield _Found("diverged", words, learnt=False)


def _no_better(run: ArmRun) -> Iterator[_Found]:
    final = next((r["accuracy"] for r in reversed(run.records) if r["accuracy"] is not None), None)
    # Without test records no accuracy is known (nan), and an exit code must not reveal that there are none.
    if final is None or not (constant := floor(run)) >= final:
        return
    one = MEASURES[run.world.problem.kind].constant
    who = " to each client's test records" if run.personal else ""
    words = (
        f"accuracy {final:.3f} at the end is no better than the {constant:.3f} of one constant answer{who}, "
        f"{one}: nothing was learnt of the inputs, or noise outweighs it."
    )
    yield _Found("constant", words, learnt=True)


def floor(run: ArmRun) -> float:
    """The accuracy of the best constant answer to the records that test the arm, or nan if there are none."""
    problem = run.world.problem
    if not len(problem.server_y):
        return nan
    if not run.personal:
        return constant_accuracy(problem.server_y, problem.kind)
    # A client's own model may know its client's most frequent class, so each client has its own baseline.
    own = [y for _, y in run.world.tests if len(y)]
    each = [constant_accuracy(y, problem.kind) for y in own]
    return float(np.average(each, weights=[len(y) for y in own])) if own else nan


def _finite(record: Mapping[str, Any]) -> bool:
    return isfinite(record["accuracy"]) and isfinite(record["loss"])


def _most_frequent(records: Records) -> str:
    """The most frequent reason of these rounds, as a sentence to append."""
    return _most_often(why for record in records for why in record["abstained"].values()) or _most_often(
        why for record in records for why in record["rejected_from"].values()
    )


def _most_often(reasons: Iterable[str]) -> str:
    given = Counter(reasons).most_common(1)
    return f" Most often: {given[0][0]}" if given else ""


def _listed(records: Records) -> str:
    """The numbers of these rounds in words: the first five, and dots if there are more."""
    shown = ", ".join(str(record["round"]) for record in records[:5])
    return f"round{'s' if len(records) > 1 else ''} {shown}{', ...' if len(records) > 5 else ''}"
