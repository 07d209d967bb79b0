"""Folders of six enrolled parties, in this process, and a server that orders what it likes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import run_round
from securefl.algorithm.queries import Answers, ByDraws, CohortQuery
from securefl.core.streams import stream
from securefl.core.wire import Header
from support.coordinated import Federation
from support.party_folders import MASKED, Asking, made
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


@dataclass
class Place(Federation):
    """All parties of enrolled folders. lost: whether the server says that it lost what they answer."""

    study: str = MASKED
    lost: bool = False

    def __post_init__(self) -> None:
        self.start()

    def begin(self, nonce: bytes | None = None) -> Attacker:
        """A server, in a new session or in that of a nonce. Its parties were asked to enter."""
        own = Attacker(self.root, self.exchange, self.study, **({} if nonce is None else {"nonce": nonce}))
        self.entered = own.enter()
        return own

    def exchange(self, requests: Mapping[str, bytes], entering: bool = False) -> dict[str, bytes]:
        said = super().exchange(requests, entering)
        return {} if self.lost else said

    def close(self) -> None:
        self.stop()
