"""Encrypted sums as a way of summing, and what server and key holder have of one attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import Agreement, Roster
from securefl.core.arrays import packed, unpacked
from securefl.core.entropy import derived
from securefl.core.errors import RemoteProtocolError
from securefl.core.machine import Machine
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import SigningKey
from securefl.core.wire import Header, Limit, decode, encode
from securefl.he.parameters import STRONG
from securefl.messages import OVERHEAD, REFUSED
from securefl.plan import Plan
from securefl.rounds import Sends, Sum
from securefl.storage.journal import Journal
from securefl.sums.encrypted.client import SumClient
from securefl.sums.encrypted.key_holder import SumKeyHolder
from securefl.sums.encrypted.keys import MOST_INTEGERS, SumKeys
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.encrypted.parts import BlindedSum, Place, SumEncryptor, SumEvaluator, SumOpener, SumTerms
from securefl.sums.encrypted.server import SumServer
from securefl.sums.way import Attempt, Identities, Opened, Unopened, required_contributions

_REQUEST = "/request"
"""No name of a value has a slash in front."""


class Encrypted:
    """`sum = "ckks"`: under the key holder's key, of which the server learns the total alone."""

    key_holder_learns = "blinded integers, uniform to it"

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._identities = Identities(journal)

    @cached_property
    def _keys(self) -> SumKeys:
        return SumKeys(self._journal)

    def check(self, sends: Sends, cohort: int) -> None:
        required_contributions(self._plan, [sends], cohort, cohort)

    def machines(self, attempt: Attempt) -> Mapping[str, Machine[Any]]:
        """Server, key holder and clients. ConfigError also where a total fits no ciphertext."""
        identities = self._identities.of(attempt)
        terms = {s.sends.name: _terms(s, len(identities), attempt.header) for s in attempt.ask.sums}
        self._keys.enter(attempt.header, sum(own.integers for own in terms.values()))
        (secret,) = self._journal.lasting([SERVER], attempt.header.session)
        signing, pair = SigningKey(derived(secret, b"requests")), self._keys.pair
        evaluators = {name: SumEvaluator(pair.public, own, signing) for name, own in terms.items()}
        openings = self._keys.openings
        openers = tuple(SumOpener(pair, own, signing.public, openings=openings) for own in terms.values())
        encrypt = {name: SumEncryptor(pair.public, own).encrypt for name, own in terms.items()}
        agreed = Agreement(
            header=attempt.header,
            roster=Roster(tuple(identity.member() for identity in identities)),
            vectors=attempt.vectors(),
            plan=self._plan.digest(),
            task=attempt.task,
        )
        enough = required_contributions(self._plan, attempt.sends, len(attempt.cohort), attempt.ordered)
        size = sum(evaluator.message_bytes for evaluator in evaluators.values())
        server = SumServer(
            agreement=agreed,
            least=enough,
            message_bytes=size,
            reply_bytes=size,
            part=ServerPart(evaluators, agreed, self._journal),
        )
        holder = SumKeyHolder(
            agreement=agreed,
            least=enough,
            most_bytes=size + 128 * (len(terms) + len(identities)) + OVERHEAD,
            part=KeyHolderPart(openers),
        )
        clients = {
            identity.name: SumClient(
                identity=identity,
                agreement=attempt.agreement_of(identity.name, agreed),
                signers=enough,
                encrypt=encrypt,
            )
            for identity in identities
            if identity.name in attempt.told
        }
        return {SERVER: server, KEY_HOLDER: holder, **clients}

    def outcome(self, server: Any, result: Opened | Unopened) -> Opened | Unopened:
        return result


def _terms(question: Sum, clients: int, header: Header) -> SumTerms:
    return SumTerms(
        length=question.size,
        bound=question.sends.grid.limit,
        clients=clients,
        parameters=STRONG,
        openings=MOST_INTEGERS,
        place=Place(
            session=header.session,
            round=header.round,
            attempt=header.attempt,
            stage=str(header.stage),
            name=question.sends.name,
        ),
    )


@dataclass(frozen=True, eq=False)
class ServerPart:
    """The server's arithmetic of one attempt, and its record of what it asked for.

    Ciphertexts cannot be made a second time as they were, so the request is on record before it is sent: a
    round that was cut off asks for the same bytes, and the key holder opens no others.
    """

    evaluators: Mapping[str, SumEvaluator]
    agreement: Agreement
    journal: Journal

    def add(self, name: str, total: Any, message: bytes, sender: str) -> Any:
        return self.evaluators[name].add(total, message, sender=sender)

    def blind(
        self, totals: Mapping[str, Any], request: SumRequest
    ) -> tuple[dict[str, BlindedSum], SumRequest]:
        """The pads, and the request that is on record for this agreement."""
        header = self.agreement.header

        def made() -> bytes:
            both = {name: self.evaluators[name].request(total) for name, total in totals.items()}
            filled = replace(request, items=tuple(item for _, item in both.values()))
            whole = np.frombuffer(encode(header, filled), dtype=np.uint8)
            return packed({_REQUEST: whole, **{name: own.pads for name, (own, _) in both.items()}})

        stored = self.journal.said(SERVER, header, f"request {self.agreement.context.hex()}", made)
        arrays = unpacked(stored)
        whole = arrays.pop(_REQUEST).tobytes()
        most = Limit(len(whole), len(totals) + 3 * len(request.members))
        asked: SumRequest = decode(whole, header, {SumRequest: most}, SERVER)
        senders = self.agreement.roster.names(asked.members)
        return {name: BlindedSum(pads, senders) for name, pads in arrays.items()}, asked

    def take(self, blinded: Any, replies: tuple[bytes, ...]) -> dict[str, NDArray[np.int64]] | None:
        try:
            return {
                name: self.evaluators[name].unblind(own, reply, sender=KEY_HOLDER)
                for (name, own), reply in zip(blinded.items(), replies, strict=True)
            }
        except RemoteProtocolError:
            return None


@dataclass(frozen=True, eq=False)
class KeyHolderPart:
    """The openers of one attempt, in the order of its vectors."""

    openers: tuple[SumOpener, ...]

    def open(self, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return tuple(_opened(opener, item) for opener, item in zip(self.openers, items, strict=False))


def _opened(opener: SumOpener, item: bytes) -> bytes:
    try:
        return opener.open(item, sender=SERVER)
    except RemoteProtocolError:
        return REFUSED
