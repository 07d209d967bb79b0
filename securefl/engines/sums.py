"""Encrypted sums of an in-process study: one key for a session, and the parties' parts for each sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from securefl.agreement import Agreement, Roster
from securefl.engines.masked import Attempt, Cohorts, told_to
from securefl.errors import ConfigError, RemoteProtocolError
from securefl.exchange.encrypted import SumClient, SumServer
from securefl.exchange.sizes import OVERHEAD
from securefl.exchange.totals import SumKeyHolder
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import STRONG
from securefl.he.sums import Place, SumEncryptor, SumEvaluator, SumOpener, SumTerms
from securefl.messages import REFUSED
from securefl.plan import Plan, least
from securefl.release import KEY_HOLDER, SERVER
from securefl.rounds import Sum
from securefl.signing import SigningKey
from securefl.wire import Header

MOST_INTEGERS = 2**28
"""tau: how many integers one key opens at most, over all its sums; the flooding is sized for it."""


@dataclass(frozen=True, eq=False)
class Parts:
    """What client, server and key holder have of one vector's sum."""

    encryptor: SumEncryptor
    evaluator: SumEvaluator
    opener: SumOpener


class EncryptedSums:
    """The key holder's key serves until the next sum could use its openings up; a resumed run takes another.

    Each key opens few enough integers for its flooding, and no key tells anything of another.
    """

    def __init__(self, plan: Plan, cohorts: Cohorts) -> None:
        self._plan = plan
        self._cohorts = cohorts
        self._signing = SigningKey.generate()
        self.parts: dict[str, Parts] = {}
        self._renew()

    def _renew(self) -> None:
        self._keys = KeyPair.generate(STRONG)
        self._openings = Openings()

    def machines(self, attempt: Attempt) -> dict[str, Any]:
        """Server, key holder and clients of one attempt.

        ConfigError where a total fits no ciphertext, and for a cohort that the plan does not allow.
        """
        identities = self._cohorts.identities(attempt)
        clients = len(identities)
        terms = {s.sends.name: self._terms(s, clients, attempt.header) for s in attempt.ask.sums}
        if self._openings.opened + sum(own.integers for own in terms.values()) > MOST_INTEGERS:
            self._renew()
        self.parts = {name: self._made(own) for name, own in terms.items()}
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

    def _made(self, terms: SumTerms) -> Parts:
        return Parts(
            SumEncryptor(self._keys.public, terms),
            SumEvaluator(self._keys.public, terms, self._signing),
            SumOpener(self._keys, terms, self._signing.public, openings=self._openings),
        )

    def _add(self, name: str, total: Any, message: bytes, sender: str) -> Any:
        return self.parts[name].evaluator.add(total, message, sender=sender)

    def blind(self, totals: Any) -> tuple[Any, tuple[bytes, ...]]:
        """The server's request for each total, in the order of the names."""
        made = {name: self.parts[name].evaluator.request(total) for name, total in totals.items()}
        return {name: blinded for name, (blinded, _) in made.items()}, tuple(
            item for _, item in made.values()
        )

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
