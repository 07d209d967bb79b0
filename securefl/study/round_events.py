"""Events of finished rounds, for the progress bars, a caller's callbacks, and the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefl.accounting.figures import brief
from securefl.core.logs import logger
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.attended import Followed
from securefl.study.checkpoint import rounds_in
from securefl.study.config import Arm, Study

Tell = Callable[[Arm, int, Mapping[str, Any]], None]
_log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrivateRound:
    """The figures of a round that are not for publication: no epsilon covers them.

    Attributes:
        accuracy, loss: of the round, even if models are personal.
        seconds, watt_hours: by the study's cost model, from each client's number of records.
        wall_seconds: on this machine.
        selected, answered: client numbers; a client that is drawn twice stands twice in `selected`.
    """

    accuracy: float | None
    loss: float | None
    seconds: float
    watt_hours: float
    wall_seconds: float
    selected: tuple[int, ...]
    answered: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Round:
    """One finished round, as callbacks get it.

    Attributes:
        number, rounds: the round's number, from 1, and the number of rounds.
        accuracy, loss: of the global model on the server's own test records. None if models were not tested
            in this round, or are personal.
        bytes_up, bytes_down: of all clients together.
        epsilon: the largest of any client so far, by party: "server", "key-holder", "others".
        asked: the number of exchanges with clients.
        ended: whether the arm ends with this round, since too few clients are left that may contribute, or
            tests on the server's records were no better for long enough (`patience`).
        private: figures that no epsilon covers, for the person at this machine.
    """

    number: int
    rounds: int
    accuracy: float | None
    loss: float | None
    bytes_up: int
    bytes_down: int
    epsilon: Mapping[str, float]
    asked: int
    ended: bool
    private: PrivateRound

    @property
    def last(self) -> bool:
        """Whether no round of its arm and seed follows."""
        return self.ended or self.number == self.rounds

    @classmethod
    def of(cls, record: Mapping[str, Any], rounds: int) -> Round:
        """A round from its record. Figures for the observer alone go into `private`."""
        own = PrivateRound(
            **{name: record[name] for name in ("accuracy", "loss", "seconds", "watt_hours", "wall_seconds")},
            selected=tuple(record["selected"]),
            answered=tuple(record["answered"]),
        )
        personal = bool(record.get("personal"))
        return cls(
            number=record["round"],
            rounds=rounds,
            accuracy=None if personal else own.accuracy,
            loss=None if personal else own.loss,
            **{name: record[name] for name in ("bytes_up", "bytes_down", "asked", "ended")},
            epsilon=dict(record["epsilon"]),
            private=own,
        )


Callback = Callable[[str, int, Round], None]
"""A callback: (name of the arm, seed, round). It is called for every newly finished round."""


def calling(callbacks: Sequence[Callback], rounds: int) -> Tell:
    """A function that passes each record as a `Round` to the callbacks, in their order."""

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        for callback in callbacks:
            callback(arm.name, seed, Round.of(record, rounds))

    return tell


def told(study: Study, folder: Path, tell: Tell, fresh: Tell | None) -> Tell:
    """A function that calls `tell` once for every round. For rounds that are not on record in the folder when
    this is called, it also calls `fresh` and writes to the log."""
    begun = {
        (arm.name, seed): rounds_in(checkpoint_file(arm_folder(folder, arm, seed)))
        for arm, seed in study.pairs
    }
    followed = defaultdict[tuple[str, int], Followed](Followed)
    heard: set[tuple[str, int, int]] = set()

    def telling(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        # A lane's rounds come a second time when its arm is read in this process.
        if (place := (arm.name, seed, record["round"])) in heard:
            return
        heard.add(place)
        tell(arm, seed, record)
        presence = followed[arm.name, seed].presence(record)
        if record["round"] > begun[arm.name, seed]:
            _note(study, arm, seed, record)
            _log.info("%s, seed %d, %s", arm.name, seed, presence.line())
            if fresh is not None:
                fresh(arm, seed, record)

    return telling


def logged(say: Callable[[str], None]) -> Callable[[str], None]:
    """A function that passes each line to `say`, and to the log as a warning."""

    def both(line: str) -> None:
        _log.warning("%s", line)
        say(line)

    return both


def _note(study: Study, arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
    accuracy = "not tested" if record["accuracy"] is None else f"accuracy {record['accuracy']:.4f}"
    spent = " ".join(f"{party}={brief(epsilon)}" for party, epsilon in record["epsilon"].items())
    rounds = study.study.rounds
    _log.info(
        "%s, seed %d, round %d of %d: %s, ε %s", arm.name, seed, record["round"], rounds, accuracy, spent
    )
