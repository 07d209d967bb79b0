"""The encrypted sum scheme: what clients, server and key holder do differently from other opened sums."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.queries import Sum
from securefl.core.agreement import Agreement, Directory, Identity, fields, tagged, u32
from securefl.core.arrays import packed, unpacked
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.hiding import Conceal
from securefl.core.keys import SecretKey
from securefl.core.machine import Work
from securefl.core.messages import OVERHEAD, REFUSED, OpenReply
from securefl.core.release import KEY_HOLDER, SERVER, Form, Release, delivered
from securefl.core.wire import Header, Limit, decode, encode
from securefl.he.keys import EncryptionKey, checked
from securefl.he.parameters import STRONG
from securefl.storage.own_record import OwnRecord, PartyKeys
from securefl.sums.encrypted.keys import MOST_INTEGERS, SumKeys
from securefl.sums.encrypted.messages import EncryptedInput, SumRequest
from securefl.sums.encrypted.parts import BlindedSum, Place, SumEncryptor, SumEvaluator, SumOpener, SumTerms
from securefl.sums.opened import Evidence, Keys, OpenedScheme, OrderedAgreement
from securefl.sums.scheme import Attempt

_PHASE = "opening"
_PURPOSE = b"encrypted sums"
_REQUEST = "/request"
"""A key that no value has: names do not begin with a slash."""


class SumAgreement(OrderedAgreement):
    """The agreement of one encrypted sum."""

    scheme: ClassVar[bytes] = b"encrypted"


class Encrypted(OpenedScheme):
    """`sum = "ckks"`: sums under the key holder's key. The server learns only the total."""

    key_holder_learns = "blinded integers, uniform to it"

    def agreement(self, attempt: Attempt, directory: Directory) -> OrderedAgreement:
        _all_terms(attempt)  # raises ConfigError if a total fits no ciphertext
        return super().agreement(attempt, directory)

    def agreed(self, directory: Directory) -> type[SumAgreement]:
        return SumAgreement

    def client_part(self, directory: Directory) -> Callable[[Attempt, bytes], EncryptingPart]:
        keys = _pinned_key(directory)

        def part(attempt: Attempt, key: bytes) -> EncryptingPart:
            public = keys(key)
            return EncryptingPart(
                {name: SumEncryptor(public, own).encrypt for name, own in _all_terms(attempt).items()}
            )

        return part

    def server_part(self, own: PartyKeys) -> Callable[[Attempt, bytes], AddingPart]:
        keys, signing = _pinned_key(own.directory), own.identity.signing

        def part(attempt: Attempt, key: bytes) -> AddingPart:
            public = keys(key)
            evaluators = {n: SumEvaluator(public, t, signing) for n, t in _all_terms(attempt).items()}
            return AddingPart(evaluators, own.record)

        return part

    def key_holder_part(self, own: PartyKeys) -> KeyHolderParts:
        return KeyHolderParts(own)


@dataclass(frozen=True)
class KeyHolderParts:
    """The key holder's parts of a session. They share its keys."""

    own: PartyKeys

    # Made at the first sum: a key costs time, and some sessions have no sum.
    @cached_property
    def _keys(self) -> SumKeys:
        return SumKeys(self.own.record)

    def __call__(self, attempt: Attempt) -> tuple[OpeningPart, bytes]:
        terms, session = list(_all_terms(attempt).values()), attempt.header.session
        # Before a client encrypts: a key without room for this sum is replaced.
        self._keys.enter(attempt.header, sum(own.integers for own in terms))
        pair, server = self._keys.pair, self.own.directory.server.identity
        openers = tuple(SumOpener(pair, own, server, openings=self._keys.openings) for own in terms)
        return OpeningPart(openers), self.own.identity.vouch(_PURPOSE, session, pair.public.key.raw)


def _pinned_key(directory: Directory) -> Callable[[bytes], EncryptionKey]:
    """The key holder's public key of the current attempt. Its signature is checked once."""
    return lru_cache(maxsize=1)(lambda said: checked(STRONG, directory.vouched(_PURPOSE, said)))


def _all_terms(attempt: Attempt) -> dict[str, SumTerms]:
    """The terms of each sum by name. Raises ConfigError if a total fits no ciphertext."""
    return {s.spec.name: _terms(s, len(attempt.cohort), attempt.header) for s in attempt.sums}


def _terms(wanted: Sum, clients: int, header: Header) -> SumTerms:
    return SumTerms(
        length=wanted.size,
        bound=wanted.spec.grid.limit,
        clients=clients,
        parameters=STRONG,
        # The key's openings, not this sum's: the flooding must cover all that the key opens.
        openings=MOST_INTEGERS,
        place=Place(
            session=header.session,
            round=header.round,
            attempt=header.attempt,
            stage=str(header.stage),
            name=wanted.spec.name,
        ),
    )


def signed_input(agreement: Agreement, member: int, digest: bytes) -> bytes:
    """The bytes that a client signs: the agreement, its number, and the digest of its ciphertexts."""
    return tagged(b"encrypted", agreement.context, fields(u32(member), digest))


def input_digest(sealed: Sequence[bytes]) -> bytes:
    """SHA-256 over a client's ciphertexts, one per vector."""
    return hashlib.sha256(fields(*sealed)).digest()


@dataclass(frozen=True, eq=False)
class EncryptingPart:
    """The clients' part: the encryption function of each vector, by name."""

    encrypt: Mapping[str, Callable[[NDArray[np.int64]], bytes]]
    form: ClassVar[Form] = "encrypted"

    def conceal(self, agreed: Agreement, member: int, secret: SecretKey) -> dict[str, Conceal]:
        return {vector.name: self.encrypt[vector.name] for vector in agreed.vectors}

    def message(
        self,
        agreed: Agreement,
        member: int,
        secret: SecretKey,
        releases: tuple[Release, ...],
        own: Identity,
    ) -> EncryptedInput:
        text = signed_input(agreed, member, input_digest([release._sealed for release in releases]))
        return EncryptedInput(releases=releases, signature=own.signing.sign(text))


@dataclass(frozen=True, eq=False)
class AddingPart:
    """The server's arithmetic of one attempt, and its record of requests.

    Encryption is random, so the same request cannot be made twice. The server records it before it sends it:
    an interrupted round sends the same bytes again, and the key holder opens no others.
    """

    evaluators: Mapping[str, SumEvaluator]
    record: OwnRecord
    phase: ClassVar[str] = _PHASE
    reply: ClassVar[type[OpenReply]] = OpenReply

    def limits(self, agreed: Agreement) -> dict[type[Any], Limit]:
        size = sum(evaluator.message_bytes for evaluator in self.evaluators.values())
        limit = Limit(size + OVERHEAD, len(agreed.vectors))
        return {EncryptedInput: limit, OpenReply: limit}

    def signed(self, agreed: Agreement, member: int, said: EncryptedInput) -> tuple[bytes, bytes]:
        digest = input_digest([one.sealed for one in delivered(said.releases, agreed.names, "encrypted")])
        return digest, signed_input(agreed, member, digest)

    def add(self, agreed: Agreement, total: Any, sender: str, said: Any) -> dict[str, Any]:
        totals = total or {}
        return {
            one.name: self.evaluators[one.name].add(totals.get(one.name), one.sealed, sender=sender)
            for one in said.releases
        }

    def request(
        self, agreed: Agreement, totals: Mapping[str, Any], evidence: Evidence
    ) -> tuple[dict[str, BlindedSum], SumRequest]:
        """The pads, and the recorded request of this agreement."""
        header = agreed.header

        def made() -> bytes:
            both = {name: self.evaluators[name].request(total) for name, total in totals.items()}
            filled = SumRequest(items=tuple(item for _, item in both.values()), **evidence)
            # Request and pads in one entry: without its pads the server could not read an opened total.
            whole = np.frombuffer(encode(header, filled), dtype=np.uint8)
            return packed({_REQUEST: whole, **{name: own.pads for name, (own, _) in both.items()}})

        stored = self.record.said(header, f"request {agreed.context.hex()}", made)
        arrays = unpacked(stored)
        whole = arrays.pop(_REQUEST).tobytes()
        most = Limit(len(whole), len(totals) + 3 * len(evidence["members"]))
        asked: SumRequest = decode(whole, header, {SumRequest: most}, SERVER)
        # From the recorded request: an interrupted run may have requested another set.
        senders = agreed.roster.names(asked.members)
        return {name: BlindedSum(pads, senders) for name, pads in arrays.items()}, asked

    def read(self, agreed: Agreement, kept: Any, request: SumRequest, reply: OpenReply) -> Work | None:
        if len(reply.items) != len(request.items):
            raise CryptoError(f"Expected {len(request.items)} items, one a vector, got {len(reply.items)}.")
        # One refusal is enough: a part of the totals is no answer to the query.
        return None if REFUSED in reply.items else Work(partial(self._unblinded, kept, reply.items))

    def _unblinded(
        self, blinded: Mapping[str, BlindedSum], replies: tuple[bytes, ...]
    ) -> dict[str, NDArray[np.int64]] | None:
        """The totals, from which the pads are subtracted. None if one is out of bounds."""
        try:
            return {
                name: self.evaluators[name].unblind(own, reply, sender=KEY_HOLDER)
                for (name, own), reply in zip(blinded.items(), replies, strict=True)
            }
        except RemoteProtocolError:
            # No party can tell whether the reply or a client's vector caused it.
            return None


@dataclass(frozen=True, eq=False)
class OpeningPart:
    """The openers of one attempt, in the order of its vectors.

    The server can add other ciphertexts than the signed ones, and the key holder cannot see that.
    """

    openers: tuple[SumOpener, ...]
    phase: ClassVar[str] = _PHASE
    boxed: ClassVar[bool] = False

    def limits(self, agreed: Agreement) -> dict[type[Any], Limit]:
        items, members = len(agreed.vectors), len(agreed.roster.members)
        size = sum(opener.message_bytes for opener in self.openers)
        return {SumRequest: Limit(size + 128 * (items + members) + OVERHEAD, items + 3 * members)}

    def complete(self, agreed: Agreement, request: SumRequest) -> bool:
        return True

    def signed(self, agreed: Agreement, request: SumRequest, place: int) -> bytes:
        return signed_input(agreed, request.members[place], request.inputs[place].raw)

    def digest(self, agreed: Agreement, request: SumRequest) -> bytes:
        inputs = (one.raw for one in request.inputs)
        parts = (agreed.context, u32(*request.members), fields(*inputs), fields(*request.items))
        return hashlib.sha256(fields(*parts)).digest()

    def unbox(self, agreed: Agreement, request: SumRequest) -> tuple[()]:
        return ()

    def open(self, agreed: Agreement, request: SumRequest, keys: Sequence[Keys]) -> OpenReply:
        both = zip(self.openers, request.items, strict=False)
        return OpenReply(items=tuple(_opened(opener, item) for opener, item in both))

    def refusal(self, agreed: Agreement, request: SumRequest, bad: tuple[int, ...] = ()) -> OpenReply:
        return OpenReply(items=(REFUSED,) * len(request.items))


def _opened(opener: SumOpener, item: bytes) -> bytes:
    try:
        return opener.open(item, sender=SERVER)
    except RemoteProtocolError:
        return REFUSED
