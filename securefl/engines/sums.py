"""Encrypted sums of an in-process study: one key for a session, and the parties' parts for each sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.agreement import Agreement, Roster
from securefl.arrays import packed, unpacked
from securefl.engines.masked import Attempt, Cohorts, told_to
from securefl.entropy import derived
from securefl.errors import ConfigError, RemoteProtocolError
from securefl.exchange.encrypted import Blind, SumClient, SumServer
from securefl.exchange.sizes import OVERHEAD
from securefl.exchange.totals import SumKeyHolder
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import STRONG
from securefl.he.sums import BlindedSum, Place, SumEncryptor, SumEvaluator, SumOpener, SumTerms
from securefl.journal import Journal
from securefl.messages import REFUSED, SumRequest
from securefl.plan import Plan, least
from securefl.release import KEY_HOLDER, SERVER
from securefl.rounds import Sum
from securefl.signing import SigningKey
from securefl.wire import Header, Limit, decode, encode

MOST_INTEGERS = 2**28
"""tau: how many integers one key opens at most, over all its sums; the flooding is sized for it."""
_REQUEST = "/request"
"""No name of a value has a slash in front."""


class SumKeys:
    """The key holder's key of the round at hand. It serves until the next sum could use its openings up.

    Each key opens few enough integers for its flooding, and no key tells anything of another. A key is on
    record, with how much it had opened before, for the rounds in which it is used.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.pair = KeyPair.generate(STRONG)
        self.openings = Openings()
        self._before, self._round, self._renewed = 0, 0, 0

    def enter(self, header: Header, integers: int) -> None:
        """Take the key that is on record for a sum of so many integers, or put one there."""
        if header.round != self._round:
            self._round, self._renewed = header.round, 0
            self._take(header)
        if self._before + self.openings.opened + integers > MOST_INTEGERS:
            self._renewed += 1
            self.pair, self.openings, self._before = KeyPair.generate(STRONG), Openings(), 0
            self._take(header)

    def _take(self, header: Header) -> None:
        opened = self._before + self.openings.opened
        own = opened.to_bytes(8, "little") + self.pair.stored()
        stored = self._journal.said(KEY_HOLDER, header, f"key {self._renewed}", lambda: own)
        if stored != own:  # of this round, before it was cut off
            self.pair, self.openings = KeyPair.restored(stored[8:], STRONG), Openings()
            self._before = int.from_bytes(stored[:8], "little")


@dataclass(frozen=True, eq=False)
class Parts:
    """What client, server and key holder have of one vector's sum."""

    encryptor: SumEncryptor
    evaluator: SumEvaluator
    opener: SumOpener


class EncryptedSums:
    """The key holder's keys, the server's requests, and the parts of the sum at hand.

    Ciphertexts cannot be made a second time as they were, so the server's request is on record before it is
    sent: a round that was cut off asks for the same bytes, and the key holder opens no others.
    """

    def __init__(self, plan: Plan, cohorts: Cohorts, journal: Journal) -> None:
        self._plan = plan
        self._cohorts = cohorts
        self._journal = journal
        self._keys = SumKeys(journal)
        self.parts: dict[str, Parts] = {}

    def machines(self, attempt: Attempt) -> dict[str, Any]:
        """Server, key holder and clients of one attempt.

        ConfigError where a total fits no ciphertext, and for a cohort that the plan does not allow.
        """
        identities = self._cohorts.identities(attempt)
        clients = len(identities)
        terms = {s.sends.name: self._terms(s, clients, attempt.header) for s in attempt.ask.sums}
        self._keys.enter(attempt.header, sum(own.integers for own in terms.values()))
        (secret,) = self._journal.lasting([SERVER], attempt.header.session)
        signing = SigningKey(derived(secret, b"requests"))
        self.parts = {name: self._made(own, signing) for name, own in terms.items()}
        sizes = sum(parts.evaluator.message_bytes for parts in self.parts.values())
        agreed = Agreement(
            header=attempt.header,
            roster=Roster(tuple(identity.member() for identity in identities)),
            vectors=attempt.vectors(),
            plan=self._plan.digest(),
            task=attempt.task,
        )
        enough = self._least(attempt)
        server = SumServer(
            agreement=agreed, least=enough, message_bytes=sizes, reply_bytes=sizes, add=self._add
        )
        holder = SumKeyHolder(
            agreement=agreed,
            least=enough,
            most_bytes=sizes + 128 * (len(terms) + clients) + OVERHEAD,
        )
        machines = {
            identity.name: SumClient(
                identity=identity,
                agreement=told_to(agreed, attempt.told[identity.name]),
                signers=enough,
                encrypt={name: parts.encryptor.encrypt for name, parts in self.parts.items()},
            )
            for identity in identities
            if identity.name in attempt.told
        }
        return {SERVER: server, KEY_HOLDER: holder, **machines}

    def _least(self, attempt: Attempt) -> int:
        """The fewest signed inputs of a total. ConfigError for a cohort below what the plan declares."""
        plan, cohort = self._plan, len(attempt.cohort)
        enough = max(2, least(plan, attempt.ordered, [question.sends for question in attempt.ask.sums]))
        if cohort < max(enough, plan.least_cohort):
            raise ConfigError(
                f"Expected a cohort of at least {max(enough, plan.least_cohort)} clients, got {cohort}."
            )
        honest = enough - plan.colluding(attempt.ordered)
        if honest < plan.least_honest:
            raise ConfigError(f"Expected at least {plan.least_honest} honest inputs, got {honest}.")
        return enough

    def _terms(self, question: Sum, clients: int, header: Header) -> SumTerms:
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

    def _made(self, terms: SumTerms, signing: SigningKey) -> Parts:
        pair = self._keys.pair
        return Parts(
            SumEncryptor(pair.public, terms),
            SumEvaluator(pair.public, terms, signing),
            SumOpener(pair, terms, signing.public, openings=self._keys.openings),
        )

    def _add(self, name: str, total: Any, message: bytes, sender: str) -> Any:
        return self.parts[name].evaluator.add(total, message, sender=sender)

    def blind(self, order: Blind) -> tuple[dict[str, BlindedSum], SumRequest]:
        """The pads, and the request that is on record for this agreement."""
        header = order.agreement.header

        def made() -> bytes:
            both = {name: self.parts[name].evaluator.request(total) for name, total in order.totals.items()}
            request = replace(order.request, items=tuple(item for _, item in both.values()))
            whole = np.frombuffer(encode(header, request), dtype=np.uint8)
            return packed({_REQUEST: whole, **{name: own.pads for name, (own, _) in both.items()}})

        stored = self._journal.said(SERVER, header, f"request {order.agreement.context.hex()}", made)
        arrays = unpacked(stored)
        whole = arrays.pop(_REQUEST).tobytes()
        most = Limit(len(whole), len(order.totals) + 3 * len(order.request.members))
        request: SumRequest = decode(whole, header, {SumRequest: most}, SERVER)
        senders = order.agreement.roster.names(request.members)
        return {name: BlindedSum(pads, senders) for name, pads in arrays.items()}, request

    def open(self, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The key holder's replies; an item that it refuses is empty."""
        return tuple(
            self._opened(parts, item) for parts, item in zip(self.parts.values(), items, strict=False)
        )

    def _opened(self, parts: Parts, item: bytes) -> bytes:
        try:
            return parts.opener.open(item, sender=SERVER)
        except RemoteProtocolError:
            return REFUSED

    def take(self, blinded: Any, replies: tuple[bytes, ...]) -> dict[str, NDArray[Any]] | None:
        """The sums, or None where a reply is none or the total is impossible."""
        try:
            return {
                name: self.parts[name].evaluator.unblind(own, reply, sender=KEY_HOLDER)
                for (name, own), reply in zip(blinded.items(), replies, strict=True)
            }
        except RemoteProtocolError:
            return None
