"""Runs of studies through `securefl.run`, with all that left a party written down.

A run is observed at three places: every message that a party took in, every answer to an Ask, and the epsilon
that the run told at its end.

A *coupled* run draws all its secrets from a key: two data sets under one key are noised alike, and their
releases differ by what the records move, and by nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import securefl
from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.core.release import PARTIES
from securefl.data import Split
from securefl.data.sides import Sides
from securefl.dp.noise import Source

Floats = NDArray[np.float64]
Sent = NDArray[np.float32]
Place = tuple[int, int]
"""Round and stage."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """One of two neighbours, as the public door takes it.

    brought: what a caller in Python hands over. files: tables or bytes beside the study, by name. packaged:
    stands in for the packaged data set that the study names. nothing: a client whose contribution becomes
    nothing: the neighbour of zero-out adjacency, which no records are.
    """

    brought: Any = None
    files: Mapping[str, pd.DataFrame | bytes] = field(default_factory=dict)
    packaged: Split | None = None
    nothing: str = ""

    def write(self, folder: Path) -> None:
        """Write the files that stand beside the study."""
        for name, own in self.files.items():
            content = own if isinstance(own, bytes) else own.to_csv(index=False).encode()
            (folder / name).write_bytes(content)


class Message(NamedTuple):
    """Where a message belongs, whose it is and of what kind, as a network sees it."""

    round: int
    stage: int
    attempt: int
    sender: str
    to: str
    kind: str


@dataclass(eq=False)
class Seen:
    """What one run showed.

    Attributes:
        began: why the study did not run to its end, empty if it did. refused: whether it says that the study
            cannot be used as written (ConfigError).
        told: epsilon by party at the end.
        lengths: of the messages of each kind and place, in the order of their arrival.
        released: numbers that a client sent in the clear, by (place, client, name), in grid units for sums.
        totals: opened sums by (place, name), noise included. steps: their grids' steps by name.
        numbers: what was opened for single clients, by (place, client, name).
        public: what everybody may know, by (place, name): cohorts, weights, public arrays, orders.
    """

    began: str = ""
    refused: bool = False
    told: dict[str, float] = field(default_factory=dict)
    lengths: dict[Message, tuple[int, ...]] = field(default_factory=dict)
    released: dict[tuple[Place, str, str], Floats] = field(default_factory=dict)
    totals: dict[tuple[Place, str], Floats] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    numbers: dict[tuple[Place, str, str], Floats] = field(default_factory=dict)
    public: dict[tuple[Place, str], Floats] = field(default_factory=dict)


def observed(
    text: str,
    records: Records,
    *,
    model: Callable[..., Any] | None,
    key: bytes,
    measures: bool,
    broadcast: Callable[[Sent], Sent] | None,
) -> Seen:
    """Run a study on these records and say what it showed.

    key: what all secrets are drawn from. measures: whether the observer of the simulation trains models of
    its own when the run has ended, which no party sees. broadcast: what a server sends in place of its model,
    to all clients in every question. An error that ends the run is noted, and not raised.
    """
    seen = Seen()
    with (
        tempfile.TemporaryDirectory(dir=_fastest()) as home,
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        _watch(patch, seen, broadcast)
        _without_pages(patch)
        if not measures:
            patch.setattr("securefl.study.observed.observed", lambda *args, **named: ())
        couple(patch, key)
        if records.packaged is not None:
            split = records.packaged
            patch.setattr("securefl.study.own_code.load", lambda *args, **options: split)
        if records.nothing:
            _zero_out(patch, records.nothing)
        records.write(Path(home))
        (Path(home) / "study.toml").write_text(text, encoding="utf-8")
        try:
            run = securefl.run(
                Path(home) / "study.toml"
                if records.brought is None and model is None
                else text_of(text, home),
                data=records.brought,
                model=model,
                out=Path(home) / "run",
                workers=1,  # in this process, where a test may plant a defect
                progress=False,
            )
        except Exception as error:  # whatever it is, it ends the run, and everybody sees that
            seen.began = f"{type(error).__name__}: {error}"
            seen.refused = isinstance(error, ConfigError)
            return seen
    seen.told = {party: float(run.epsilon[party].max()) for party in PARTIES}
    return seen


def text_of(text: str, home: str) -> str:
    """The text with files named from the root, for a study that is no file."""
    for name in ("people.csv", "people.parquet", "test.csv"):
        text = text.replace(f'"{name}"', f'"{home}/{name}"')
    return text


def _fastest() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# Observing ----------------------------------------------------------------------------------------


def _watch(patch: pytest.MonkeyPatch, seen: Seen, broadcast: Callable[[Sent], Sent] | None) -> None:
    from securefl.engine.drive import Driver
    from securefl.engine.inprocess import InProcess

    read, query = Driver._read, InProcess.query

    def reading(drive: Driver, parcel: Any, expects: Any) -> Any:
        body = read(drive, parcel, expects)
        if body is not None:
            _note(seen, drive.header, parcel, body)
        return body

    def asking(engine: InProcess, question: Any, header: Any, network: Any) -> Any:
        place = (header.round, header.stage)
        if broadcast is not None:
            question = replace(question, broadcast=broadcast(question.broadcast))
        _note_ask(seen, place, question)
        answers, log = query(engine, question, header, network)
        _note_answers(seen, place, question, answers)
        return answers, log

    patch.setattr(Driver, "_read", reading)
    patch.setattr(InProcess, "query", asking)


def _note(seen: Seen, header: Any, parcel: Any, body: Any) -> None:
    spec = type(body).__wire__
    message = Message(header.round, header.stage, header.attempt, parcel.sender, parcel.to, spec.kind)
    seen.lengths[message] = (*seen.lengths.get(message, ()), len(parcel.data))
    place = (header.round, header.stage)
    for release in getattr(body, "releases", ()):
        if release.form == "open":
            seen.released[place, parcel.sender, release.name] = np.asarray(release.numbers, np.float64)
    if spec.kind == "order":
        for name in ("records", "whole", "most", "draws", "members"):
            value = np.atleast_1d(np.asarray(getattr(body, name, 0), np.float64))
            seen.public[place, f"order to {parcel.to}: {name}"] = value


def _note_ask(seen: Seen, place: Place, question: Any) -> None:
    seen.public[place, "cohort"] = np.asarray(question.cohort, np.float64)
    for name, array in question.public.items():
        seen.public[place, f"public {name}"] = np.asarray(array, np.float64)
    for one in question.sums:
        seen.steps[one.spec.name] = one.spec.grid.step


def _note_answers(seen: Seen, place: Place, question: Any, answers: Any) -> None:
    seen.public[place, "survivors"] = np.asarray(answers.survivors, np.float64)
    for name, total in answers.totals.items():
        seen.totals[place, name] = np.asarray(total.value, np.float64)
    for name, by_client in answers.per_client.items():
        for client, number in by_client.items():
            seen.numbers[place, f"client-{client:04d}", name] = np.array([float(number)])


def _without_pages(patch: pytest.MonkeyPatch) -> None:
    """No report is drawn, and none advises on noise by public settings: they take longer than the run."""
    patch.setattr("securefl.study.results.advice", lambda *args, **named: "")
    patch.setattr("securefl.study.run_report.write", lambda *args, **named: Path("report.html"))
    patch.setattr(
        logging.getLogger("securefl.api.running"), "disabled", True
    )  # of models that learnt nothing


def _zero_out(patch: pytest.MonkeyPatch, client: str) -> None:
    from securefl.engine.party import contributing

    protect = contributing.protect

    def emptied(protection: Any, value: Any, *, key: Any, **given: Any) -> Any:
        if key.holder == client and value.integers is not None:
            value = replace(value, integers=np.zeros_like(value.integers))
        return protect(protection, value, key=key, **given)

    patch.setattr(contributing, "protect", emptied)


# Coupling -----------------------------------------------------------------------------------------


def couple(patch: pytest.MonkeyPatch, key: bytes) -> None:
    """Draw all secrets of a run from `key`, by their purpose. Public randomness is the study's seed's.

    Some noise follows from what it is put on too, or from the model before it, so that a replayed round
    repeats it and no other does. Under a key it does not, since two neighbours shall be noised alike here.
    """
    from securefl.engine.party.computing import Computing
    from securefl.mechanisms import totals
    from securefl.storage.journal import Journal
    from securefl.study.backends import OneProcess
    from securefl.sums.two_server.scheme import PadsPart

    def drawn(*purpose: object) -> SecretKey:
        return SecretKey(hashlib.sha256(key + repr(purpose).encode()).digest())

    secret, lasting = Journal._secret, Journal._lasting

    def of_round(journal: Journal, party: str, session: bytes, number: int) -> SecretKey | None:
        kept = secret(journal, party, session, number)
        return None if kept is None else drawn("round", party, number)

    def of_session(journal: Journal, party: str, session: bytes) -> SecretKey:
        lasting(journal, party, session)
        return drawn("session", party)

    patch.setattr(Journal, "_secret", of_round)
    patch.setattr(Journal, "_lasting", of_session)
    patch.setattr(OneProcess, "session", lambda backend, cast: drawn("name").reveal())
    patch.setattr(
        totals,
        "_source",
        lambda secret, name, of, header: Source(drawn("central", header.round, header.stage, name)),
    )
    source = Computing._source

    def of_training(own: Computing, task: Any, name: str, secret: SecretKey | None) -> Source | None:
        if source(own, task, name, secret) is None:
            return None
        order = task.order
        which = (order.initial, order.number, order.again)
        return Source(drawn("training", task.client, task.header.round, which, name))

    patch.setattr(Computing, "_source", of_training)
    patch.setattr(
        PadsPart,
        "_source",
        lambda part, question, asked: Source(
            drawn("key-holder", question.round, question.ask, question.again, question.name)
        ),
    )
    made = Sides._for
    patch.setattr(
        Sides,
        "_for",
        lambda own, purpose: (
            made(own, purpose) if isinstance(own._key, int) else drawn("split", purpose).reveal()
        ),
    )
