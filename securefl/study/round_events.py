"""Who is told of a finished round: the progress, a caller's callback, and the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefl.accounting.figures import brief
from securefl.core.logs import logger
from securefl.study.arm import arm_folder
from securefl.study.checkpoint import rounds_in
from securefl.study.config import Arm, Study

Tell = Callable[[Arm, int, Mapping[str, Any]], None]
_log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrivateRound:
    """What of a round is not for publication: no epsilon covers it.

    Attributes:
        accuracy, loss: those of the round, of personal models too.
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
    """One finished round, as a callback is told it.

    Attributes:
        number, rounds: which round it is, from 1, and of how many.
        accuracy, loss: of the global model on the server's own test records. None in a round in which models
            were not tested, and where models are personal.
        bytes_up, bytes_down: of all clients together.
        epsilon: the largest of any client so far, by party: "server", "key-holder", "others".
        asked: how many exchanges there were.
        ended: whether the arm ends with this round, since nobody is left to be asked.
        private: what no epsilon covers, for the person at this machine.
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
        """What a round's record says to others than its observer, and apart from it what it says here."""
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
"""Called with (name of the arm, seed, round) for every round that is finished now."""


def calling(callbacks: Sequence[Callback], rounds: int) -> Tell:
    """Tell callbacks of a record as a `Round`, in their order."""

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        for callback in callbacks:
            callback(arm.name, seed, Round.of(record, rounds))

    return tell


def told(study: Study, folder: Path, tell: Tell, fresh: Tell | None) -> Tell:
    """`tell` for every round; `fresh`, and the log, for those that are not on record in the folder yet."""
    begun = {
        (arm.name, seed): _on_record(folder, arm, seed) for seed in study.study.seeds for arm in study.arms
    }

    def telling(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        tell(arm, seed, record)
        if record["round"] > begun[arm.name, seed]:
            _note(study, arm, seed, record)
            if fresh is not None:
                fresh(arm, seed, record)

    return telling


def logged(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say`, and the log: what a person should know is a warning there."""

    def both(line: str) -> None:
        _log.warning("%s", line)
        say(line)

    return both


def _on_record(folder: Path, arm: Arm, seed: int) -> int:
    path = arm_folder(folder, arm, seed) / "checkpoint.sqlite"
    return rounds_in(path) if path.is_file() else 0


def _note(study: Study, arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
    accuracy = "not tested" if record["accuracy"] is None else f"accuracy {record['accuracy']:.4f}"
    spent = " ".join(f"{party}={brief(epsilon)}" for party, epsilon in record["epsilon"].items())
    rounds = study.study.rounds
    _log.info(
        "%s, seed %d, round %d of %d: %s, ε %s", arm.name, seed, record["round"], rounds, accuracy, spent
    )
