"""Folders of six enrolled parties, in this process, and a server that orders what it likes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import run_round
from securefl.algorithm.queries import Answers, ByDraws, CohortQuery
from securefl.core.release import SERVER
from securefl.core.streams import stream
from securefl.core.wire import Header
from securefl.deployment import folder as folders
from support.party_folders import MASKED, Asking, made, names
from support.tiny_study import text, with_privacy

CLIENTS, VICTIM = 6, 5
FEDAVG = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "partial"\n'
STUDY = with_privacy(
    text(FEDAVG, clients=CLIENTS, rounds=1),
    {
        "sum": '"masked"',
        "dropout": "0.0",
        "corrupt": "0.0",
        "max_client_weight": "0.3",
        "min_cohort_size": "5",
    },
)
EVERYBODY, BUT_VICTIM = tuple(range(CLIENTS)), tuple(range(VICTIM))
Vector = NDArray[np.float64]


class Attacker(Asking):
    """The server of these folders, which signs sessions and orders of its choice."""

    def total(self, cohort: tuple[int, ...], number: int = 1) -> Vector | None:
        """The sum of round `number` over this cohort; None if it does not open."""
        of, found = made(self.study), list[Vector]()

        def query(question: CohortQuery, stage: int) -> Answers:
            drawn = ByDraws(dict.fromkeys(cohort, 1))
            weights = drawn if isinstance(question.weights, ByDraws) else question.weights
            lie = replace(question, cohort=cohort, weights=weights)
            answers = self.server.query(lie, Header(self.session, number, 0, stage), self.transport)
            if answers.survivors:
                found.extend(own.value / own.weight * len(cohort) for own in answers.totals.values())
            return answers

        run_round(of.algorithm, of.algorithm.start(), of.world.population(), number, stream(1), query)
        return found[0] if found else None


class Place:
    """The parties of enrolled folders, each in this process."""

    def __init__(self, root: Path, study: str = MASKED) -> None:
        self.root, self.study, self._stack = root, study, ExitStack()
        self.answers: dict[str, Callable[[bytes], bytes]] = {}
        self.lost = False
        for name in sorted(set(names(made(study))) - {SERVER}):
            party = self._stack.enter_context(folders.opened(root / name))
            self.answers[name] = party.session().answer

    def begin(self, nonce: bytes | None = None) -> Attacker:
        """A server, in a new session or in that of a nonce. Its parties were asked to enter."""
        own = Attacker(self.root, self.exchange, self.study, **({} if nonce is None else {"nonce": nonce}))
        self.entered = own.enter()
        return own

    def exchange(self, sent: Mapping[str, bytes]) -> dict[str, bytes]:
        said = {name: self.answers[name](data) for name, data in sent.items()}
        return {} if self.lost else said

    def close(self) -> None:
        self._stack.close()
