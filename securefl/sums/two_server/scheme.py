"""The two-server sum scheme, and the key holder's part in one attempt.

A client derives a seed for the attempt, and from the seed a pad, a pseudorandom vector. It sends its vector
plus the pad to the server, and the seed in a box: encrypted for the key holder. The server adds up the padded
vectors. The key holder opens the boxes, adds up the pads (and the plan's noise, if it adds any), and sends
this one sum, sealed to the server. The server subtracts it. An attempt is one try to open one sum. Another
attempt, over fewer clients, may follow a failed one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.agreement import Directory, Identity, Question, fields, u32
from securefl.core.entropy import derived
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.keys import SecretKey
from securefl.core.machine import Machine
from securefl.core.release import KEY_HOLDER
from securefl.core.signing import AgreementKey, seal
from securefl.dp.noise import Source
from securefl.mechanisms.registry import mechanism_of
from securefl.storage.own_record import Own
from securefl.sums.scheme import Attempt, Opened, Unopened, required_contributions
from securefl.sums.two_server.agreement import Agreement
from securefl.sums.two_server.client import PadClient
from securefl.sums.two_server.key_holder import PadKeyHolder, Seeds
from securefl.sums.two_server.messages import PadRequest
from securefl.sums.two_server.pads import opened, total_pads
from securefl.sums.two_server.server import PadServer


class TwoServer:
    """`sum = "two-server"`: sums under pads. The key holder has the seeds of the pads and never the vectors.

    The keys of server and key holder are their pinned ones, so a party that restarts sends the same bytes.
    """

    key_holder_learns = "seeds of pads, drawn without regard to any record"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def check(self, spec: ValueSpec, cohort: int) -> None:
        usual = Weights.usual(self._plan, spec, cohort)
        required_contributions(self._plan, [spec], cohort, usual)

    def clients(self, directory: Directory) -> TwoServerClients:
        return TwoServerClients(self, directory)

    def server(self, own: Own) -> TwoServerServer:
        return TwoServerServer(self, own)

    def key_holder(self, own: Own) -> TwoServerKeyHolder:
        return TwoServerKeyHolder(self, own, self._plan)

    def agreement(self, attempt: Attempt, directory: Directory) -> Agreement:
        """The agreement of an attempt, which each party computes for itself.

        Raises ConfigError if a total does not fit a word, or no key holder is pinned.
        """
        if directory.key_holder is None:
            raise ConfigError("Expected the pinned keys of a key holder, got none. Name the key holder.")
        return Agreement(
            header=attempt.header,
            roster=directory.roster(attempt.cohort),
            # The word must hold the noise too: a total that wraps around looks like any other.
            vectors=attempt.vectors(lambda spec: mechanism_of(self._plan, spec).headroom().total),
            plan=self._plan.digest(),
            task=attempt.task,
            holder=directory.key_holder.channel,
            server=directory.server.channel,
            weights=attempt.weights.encoded(),
            ordered=attempt.ordered,
        )

    def enough(self, attempt: Attempt) -> int:
        """The least number of clients in a total that is opened.

        Raises ConfigError if the plan does not allow the attempt.
        """
        return required_contributions(self._plan, attempt.spec, len(attempt.cohort), attempt.weights)


@dataclass(frozen=True)
class TwoServerClients:
    """The clients' side."""

    scheme: TwoServer
    directory: Directory

    def machines(
        self, attempt: Attempt, identities: Sequence[Identity], key: bytes
    ) -> Mapping[str, Machine[Any]]:
        agreed, enough = self.scheme.agreement(attempt, self.directory), self.scheme.enough(attempt)
        return {
            identity.name: PadClient(identity=identity, agreement=agreed, signers=enough)
            for identity in identities
        }


@dataclass(frozen=True)
class TwoServerServer:
    """The server's side: it has the padded vectors and never a seed."""

    scheme: TwoServer
    own: Own

    def check(self, attempt: Attempt) -> None:
        self.scheme.agreement(attempt, self.own.directory)
        self.scheme.enough(attempt)

    def machine(self, attempt: Attempt, key: bytes) -> PadServer:
        agreed, enough = self.scheme.agreement(attempt, self.own.directory), self.scheme.enough(attempt)
        return PadServer(agreement=agreed, least=enough, key=self.own.identity.channel)

    def outcome(self, machine: Any, result: Opened | Unopened) -> Opened | Unopened:
        return result


@dataclass(frozen=True)
class TwoServerKeyHolder:
    """The key holder's side: it opens the boxes of seeds and never has a vector."""

    scheme: TwoServer
    own: Own
    plan: Plan

    def machine(self, attempt: Attempt) -> tuple[PadKeyHolder, bytes]:
        agreed, enough = self.scheme.agreement(attempt, self.own.directory), self.scheme.enough(attempt)
        secret = self.own.record.lasting(attempt.header.session)
        # No key of the attempt is returned: the agreement has the pinned ones.
        part = KeyHolderPart(secret, self.plan, attempt.spec, self.own.identity.channel)
        return PadKeyHolder(agreement=agreed, least=enough, part=part), b""


@dataclass(frozen=True, eq=False)
class KeyHolderPart:
    """The key holder's lasting secret, and the seals and noise derived from it under its own plan.

    spec: the specs of the summed values. key: the key for which clients box their seeds. `asked` in the
    methods is the digest of the server's request.
    """

    secret: SecretKey
    plan: Plan
    spec: Sequence[ValueSpec]
    key: AgreementKey

    def open(self, agreed: Agreement, request: PadRequest) -> tuple[Seeds | None, ...]:
        return tuple(
            _opened(self.key, agreed, request, place, member) for place, member in enumerate(request.members)
        )

    def pads(self, agreed: Agreement, asked: bytes, seeds: Sequence[Seeds]) -> bytes:
        """The sealed sums of pads. The seal's secret is derived, so a restart sends the same bytes."""
        summed = total_pads(agreed, seeds, self.noise(agreed, asked))
        return seal(agreed.server, summed, asked, secret=derived(self.secret, b"two-server seals"))

    def noise(self, agreed: Agreement, asked: bytes) -> dict[str, NDArray[np.int64]]:
        """The plan's noise on each sum, by name, if the key holder adds it: one draw for each sum.

        The noise is derived from the sum's place and from the one request on record for it. If the key holder
        lost its record, a request for another set of clients would get independent noise. With the same
        noise, the difference of two totals would have none.
        """
        lengths = {vector.name: vector.length for vector in agreed.vectors}
        # A value that is constant in the session has one question in all rounds, so its noise is drawn once.
        questions = {question.name: question for question in agreed.openings}
        drawn = {}
        for name, mechanism in ((own.name, mechanism_of(self.plan, own)) for own in self.spec):
            if mechanism.total_by == KEY_HOLDER:
                row = self._source(questions[name], asked)
                drawn[name] = mechanism.total_noise(KEY_HOLDER, lengths[name], [row])
        return {name: noise for name, noise in drawn.items() if noise is not None}

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
        # The server learns which members' boxes do not open. It does not learn the reason.
        return None
