"""Two-server sums as a way of summing, and what the key holder has of one attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import Question, Roster, fields, u32
from securefl.core.entropy import derived
from securefl.core.errors import CryptoError
from securefl.core.keys import SecretKey
from securefl.core.machine import Machine
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import AgreementKey, seal
from securefl.dp.noise import Source
from securefl.plan import Plan, noised, placement, room
from securefl.protect import noise
from securefl.rounds import Sends
from securefl.storage.journal import Journal
from securefl.sums.two_server.agreement import Agreement
from securefl.sums.two_server.client import PadClient
from securefl.sums.two_server.key_holder import PadKeyHolder, Seeds
from securefl.sums.two_server.messages import PadRequest
from securefl.sums.two_server.pads import opened, total_pads
from securefl.sums.two_server.server import PadServer
from securefl.sums.way import Attempt, Identities, Opened, Unopened, required_contributions


class TwoServer:
    """`sum = "two-server"`: under pads whose seeds the key holder has, and never the vectors.

    The keys of server and key holder are lasting: a party that restarts says the same again.
    """

    key_holder_learns = "seeds of pads, drawn without regard to any record"

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._identities = Identities(journal)

    def check(self, sends: Sends, cohort: int) -> None:
        required_contributions(self._plan, [sends], cohort, cohort)

    def machines(self, attempt: Attempt) -> Mapping[str, Machine[Any]]:
        """Server, key holder and clients. ConfigError also where a total fits no word."""
        identities = self._identities.of(attempt)
        server, holder = self._journal.lasting([SERVER, KEY_HOLDER], attempt.header.session)
        part = KeyHolderPart(holder, self._plan, attempt.sends)
        reply_key = AgreementKey(derived(server, b"two-server replies"))
        agreed = Agreement(
            header=attempt.header,
            roster=Roster(tuple(identity.member() for identity in identities)),
            vectors=attempt.vectors(lambda sends: room(self._plan, sends)),
            plan=self._plan.digest(),
            task=attempt.task,
            holder=part.key.public,
            server=reply_key.public,
        )
        enough = required_contributions(self._plan, attempt.sends, len(attempt.cohort), attempt.ordered)
        clients: dict[str, Machine[Any]] = {
            identity.name: PadClient(
                identity=identity,
                agreement=attempt.agreement_of(identity.name, agreed),
                signers=enough,
            )
            for identity in identities
            if identity.name in attempt.told
        }
        return {
            SERVER: PadServer(agreement=agreed, least=enough, key=reply_key),
            KEY_HOLDER: PadKeyHolder(agreement=agreed, least=enough, part=part),
            **clients,
        }

    def outcome(self, server: Any, result: Opened | Unopened) -> Opened | Unopened:
        return result


@dataclass(frozen=True, eq=False)
class KeyHolderPart:
    """The key holder's lasting secret, and what follows from it under its own plan.

    sends: the values that are summed.
    """

    secret: SecretKey
    plan: Plan
    sends: Sequence[Sends]

    @cached_property
    def key(self) -> AgreementKey:
        """What clients box their seeds for."""
        return AgreementKey(derived(self.secret, b"two-server boxes"))

    def open(self, agreed: Agreement, request: PadRequest) -> tuple[Seeds | None, ...]:
        return tuple(
            _opened(self.key, agreed, request, place, member) for place, member in enumerate(request.members)
        )

    def pads(self, agreed: Agreement, asked: bytes, seeds: Sequence[Seeds]) -> bytes:
        """Sealed with what follows from the lasting secret, so a restart says the same bytes."""
        summed = total_pads(agreed, seeds, self.noise(agreed, asked))
        return seal(agreed.server, summed, asked, secret=derived(self.secret, b"two-server seals"))

    def noise(self, agreed: Agreement, asked: bytes) -> dict[str, NDArray[np.int64]]:
        """The plan's noise on each sum, by name, where this party adds it: one draw for a question.

        It follows from the question and from the one request that is on record for it. Were the record lost,
        another set would get noise that has nothing to do with this one's: under the same noise, the
        difference of two totals would be bare.
        """
        noised_ones = [
            s for s in self.sends if noised(self.plan, s) and placement(self.plan, s) == "key-holder"
        ]
        lengths = {vector.name: vector.length for vector in agreed.vectors}
        questions = {question.name: question for question in agreed.openings}
        return {
            sends.name: noise(
                self.plan, sends, lengths[sends.name], self._source(questions[sends.name], asked)
            )
            for sends in noised_ones
        }

    def _source(self, question: Question, asked: bytes) -> Source:
        numbers = u32(question.round, question.ask, question.again)
        purpose = fields(b"two-server noise", question.session, numbers, question.name.encode(), asked)
        return Source(derived(self.secret, purpose))


def _opened(
    key: AgreementKey, agreed: Agreement, request: PadRequest, place: int, member: int
) -> Seeds | None:
    try:
        return opened(key, agreed, member, request.of(place))
    except CryptoError:
        return None
