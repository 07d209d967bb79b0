"""The encrypted sum scheme, and the parts of server and key holder in one attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Sum, ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.agreement import Agreement, Directory, Identity, digest, fields, u32
from securefl.core.arrays import packed, unpacked
from securefl.core.errors import RemoteProtocolError
from securefl.core.machine import Machine
from securefl.core.messages import OVERHEAD, REFUSED
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, Limit, decode, encode
from securefl.he.keys import EncryptionKey, checked
from securefl.he.parameters import STRONG
from securefl.storage.own_record import Own, OwnRecord
from securefl.sums.encrypted.client import SumClient
from securefl.sums.encrypted.key_holder import MOST_INTEGERS, SumKeyHolder, SumKeys
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.encrypted.parts import BlindedSum, Place, SumEncryptor, SumEvaluator, SumOpener, SumTerms
from securefl.sums.encrypted.server import SumServer
from securefl.sums.scheme import Attempt, Opened, Unopened, required_contributions

_PURPOSE = b"encrypted sums"
_REQUEST = "/request"
"""A key that no value has: names do not begin with a slash."""


class Encrypted:
    """`sum = "ckks"`: sums under the key holder's key. The server learns only the total."""

    key_holder_learns = "blinded integers, uniform to it"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def check(self, spec: ValueSpec, cohort: int) -> None:
        usual = Weights.usual(self._plan, spec, cohort)
        required_contributions(self._plan, [spec], cohort, usual)

    def clients(self, directory: Directory) -> EncryptedClients:
        return EncryptedClients(self, directory)

    def server(self, own: Own) -> EncryptedServer:
        return EncryptedServer(self, own)

    def key_holder(self, own: Own) -> EncryptedKeyHolder:
        return EncryptedKeyHolder(self, own)

    def agreement(self, attempt: Attempt, directory: Directory) -> SumAgreement:
        """The agreement of an attempt, which each party computes for itself."""
        return SumAgreement(
            header=attempt.header,
            roster=directory.roster(attempt.cohort),
            vectors=attempt.vectors(),
            plan=self._plan.digest(),
            task=attempt.task,
            weights=attempt.weights.encoded(),
            ordered=attempt.ordered,
        )

    def enough(self, attempt: Attempt) -> int:
        """The least number of clients in a total that is opened.

        Raises ConfigError if the plan does not allow the attempt.
        """
        return required_contributions(self._plan, attempt.spec, len(attempt.cohort), attempt.weights)


@dataclass(frozen=True, kw_only=True)
class SumAgreement(Agreement):
    """The agreement of one encrypted sum.

    ordered: the size of the ordered cohort. The least number of clients in an opened total follows from it.
    weights: the weights that the order states, encoded. The key holder receives both from the server only,
        but no client signs others than those of its order.
    """

    ordered: int
    weights: bytes

    # In every attempt `ordered` follows from `weights`. An agreement made by other code binds both.
    @property
    def rules(self) -> bytes:
        return digest(b"encrypted rules", b"", fields(u32(self.ordered), self.weights))


class EncryptedClients:
    """The clients' side: they encrypt under the key that the key holder signed."""

    def __init__(self, scheme: Encrypted, directory: Directory) -> None:
        self._scheme = scheme
        self._directory = directory
        self._keys = _PinnedKey(directory)

    def machines(
        self, attempt: Attempt, identities: Sequence[Identity], key: bytes
    ) -> Mapping[str, Machine[Any]]:
        enough, agreed = self._scheme.enough(attempt), self._scheme.agreement(attempt, self._directory)
        public = self._keys.of(key)
        encrypt = {name: SumEncryptor(public, own).encrypt for name, own in _all_terms(attempt).items()}
        return {
            identity.name: SumClient(identity=identity, agreement=agreed, signers=enough, encrypt=encrypt)
            for identity in identities
        }


class EncryptedServer:
    """The server's side: it adds ciphertexts and signs its requests."""

    def __init__(self, scheme: Encrypted, own: Own) -> None:
        self._scheme = scheme
        self._own = own
        self._keys = _PinnedKey(own.directory)

    def check(self, attempt: Attempt) -> None:
        self._scheme.enough(attempt)
        _all_terms(attempt)

    def machine(self, attempt: Attempt, key: bytes) -> SumServer:
        enough, agreed = self._scheme.enough(attempt), self._scheme.agreement(attempt, self._own.directory)
        public, signing = self._keys.of(key), self._own.identity.signing
        evaluators = {name: SumEvaluator(public, own, signing) for name, own in _all_terms(attempt).items()}
        size = sum(evaluator.message_bytes for evaluator in evaluators.values())
        return SumServer(
            agreement=agreed,
            least=enough,
            message_bytes=size,
            reply_bytes=size,
            part=ServerPart(evaluators, agreed, self._own.record),
        )

    def outcome(self, machine: Any, result: Opened | Unopened) -> Opened | Unopened:
        return result


class EncryptedKeyHolder:
    """The key holder's side: its keys, and how many integers each has opened."""

    def __init__(self, scheme: Encrypted, own: Own) -> None:
        self._scheme = scheme
        self._own = own

    # Made at the first sum: a key costs time, and some sessions have no sum.
    @cached_property
    def _keys(self) -> SumKeys:
        return SumKeys(self._own.record)

    def machine(self, attempt: Attempt) -> tuple[SumKeyHolder, bytes]:
        enough, agreed = self._scheme.enough(attempt), self._scheme.agreement(attempt, self._own.directory)
        terms = list(_all_terms(attempt).values())
        # Before a client encrypts: a key without room for this sum is replaced.
        self._keys.enter(attempt.header, sum(own.integers for own in terms))
        pair, server = self._keys.pair, self._own.directory.server.identity
        openers = tuple(SumOpener(pair, own, server, openings=self._keys.openings) for own in terms)
        size = sum(opener.message_bytes for opener in openers)
        holder = SumKeyHolder(
            agreement=agreed,
            least=enough,
            most_bytes=size + 128 * (len(terms) + len(attempt.cohort)) + OVERHEAD,
            part=KeyHolderPart(openers),
        )
        key = self._own.identity.vouch(_PURPOSE, attempt.header.session, pair.public.key.raw)
        return holder, key


class _PinnedKey:
    """The key holder's public key of the current attempt. Its signature is checked once."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._known: tuple[bytes, EncryptionKey] | None = None

    def of(self, said: bytes) -> EncryptionKey:
        if self._known is None or self._known[0] != said:
            self._known = said, checked(STRONG, self._directory.vouched(_PURPOSE, said))
        return self._known[1]


def _all_terms(attempt: Attempt) -> dict[str, SumTerms]:
    """The terms of each sum by name. Raises ConfigError if a total fits no ciphertext."""
    return {s.spec.name: _terms(s, len(attempt.cohort), attempt.header) for s in attempt.sums}


def _terms(question: Sum, clients: int, header: Header) -> SumTerms:
    return SumTerms(
        length=question.size,
        bound=question.spec.grid.limit,
        clients=clients,
        parameters=STRONG,
        # The key's openings, not this sum's: the flooding must cover all that the key opens.
        openings=MOST_INTEGERS,
        place=Place(
            session=header.session,
            round=header.round,
            attempt=header.attempt,
            stage=str(header.stage),
            name=question.spec.name,
        ),
    )


@dataclass(frozen=True, eq=False)
class ServerPart:
    """The server's arithmetic of one attempt, and its record of requests.

    Encryption is random, so the same request cannot be made twice. The server records it before it sends it:
    an interrupted round sends the same bytes again, and the key holder opens no others.
    """

    evaluators: Mapping[str, SumEvaluator]
    agreement: Agreement
    record: OwnRecord

    def add(self, name: str, total: Any, message: bytes, sender: str) -> Any:
        return self.evaluators[name].add(total, message, sender=sender)

    def blind(
        self, totals: Mapping[str, Any], request: SumRequest
    ) -> tuple[dict[str, BlindedSum], SumRequest]:
        """The pads, and the recorded request of this agreement."""
        header = self.agreement.header

        def made() -> bytes:
            both = {name: self.evaluators[name].request(total) for name, total in totals.items()}
            filled = replace(request, items=tuple(item for _, item in both.values()))
            # Request and pads in one entry: without its pads the server could not read an opened total.
            whole = np.frombuffer(encode(header, filled), dtype=np.uint8)
            return packed({_REQUEST: whole, **{name: own.pads for name, (own, _) in both.items()}})

        stored = self.record.said(header, f"request {self.agreement.context.hex()}", made)
        arrays = unpacked(stored)
        whole = arrays.pop(_REQUEST).tobytes()
        most = Limit(len(whole), len(totals) + 3 * len(request.members))
        asked: SumRequest = decode(whole, header, {SumRequest: most}, SERVER)
        # From the recorded request: an interrupted run may have requested another set.
        senders = self.agreement.roster.names(asked.members)
        return {name: BlindedSum(pads, senders) for name, pads in arrays.items()}, asked

    def take(self, blinded: Any, replies: tuple[bytes, ...]) -> dict[str, NDArray[np.int64]] | None:
        try:
            return {
                name: self.evaluators[name].unblind(own, reply, sender=KEY_HOLDER)
                for (name, own), reply in zip(blinded.items(), replies, strict=True)
            }
        except RemoteProtocolError:
            # No party can tell whether the reply or a client's vector caused it.
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
