"""The two-server sum scheme: what clients, server and key holder do differently from other opened sums.

A client derives a seed for the attempt, and from the seed a pad, a pseudorandom vector. It sends its vector
plus the pad to the server, and the seed in a box: encrypted for the key holder. The server adds up the padded
vectors. The key holder opens the boxes, adds up the pads (and the plan's noise, if it adds any), and sends
this one sum, sealed to the server. The server subtracts it. An attempt is one try to open one sum. Another
attempt, over fewer clients, may follow a failed one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Sum, ValueSpec
from securefl.core.agreement import Directory, Identity, Question, fields, u32
from securefl.core.append_map import AppendMap
from securefl.core.entropy import derived
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.hiding import Conceal
from securefl.core.keys import SecretKey, Share
from securefl.core.machine import Work
from securefl.core.messages import OVERHEAD, REFUSED
from securefl.core.release import KEY_HOLDER, Form, Release, delivered
from securefl.core.signing import AgreementKey, seal, unseal
from securefl.core.wire import Header, Limit
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.totals import row_noise
from securefl.secagg.masks import Words
from securefl.secagg.packing import Masker, unpack
from securefl.storage.own_record import PartyKeys
from securefl.sums.opened import Evidence, Keys, OpenedScheme, Unboxable
from securefl.sums.scheme import Attempt
from securefl.sums.two_server.agreement import (
    Agreement,
    boxes_digest,
    request_digest,
    signed_input,
    vectors_digest,
)
from securefl.sums.two_server.messages import PaddedInput, PadReply, PadRequest
from securefl.sums.two_server.pads import (
    BOX_BYTES,
    SEALING_BYTES,
    box,
    opened,
    pads_bytes,
    pads_of,
    seeds_of,
    total_pads,
    unpadded,
)

_PHASE = "pads"
_MEMBER_BYTES = 128
"""An upper bound for a member's number, digest and signature, with their lengths."""


class TwoServer(OpenedScheme):
    """`sum = "two-server"`: sums under pads. The key holder has the seeds of the pads and never the vectors.

    The keys of server and key holder are their pinned ones, so a party that restarts sends the same bytes.
    """

    key_holder_learns = "seeds of pads, drawn without regard to any record"

    def agreed(self, directory: Directory) -> Callable[..., Agreement]:
        if directory.key_holder is None:
            raise ConfigError("Expected the pinned keys of a key holder, got none. Name the key holder.")
        return partial(Agreement, holder=directory.key_holder.channel, server=directory.server.channel)

    def headroom(self, spec: ValueSpec) -> int:
        # The word must hold the noise too: a total that wraps around looks like any other.
        return Protection(self._plan, spec).mechanism.headroom().total

    def client_part(self, directory: Directory) -> Callable[[Attempt, bytes], PaddingPart]:
        return lambda attempt, key: PaddingPart()

    def server_part(self, own: PartyKeys) -> Callable[[Attempt, bytes], UnpaddingPart]:
        return lambda attempt, key: UnpaddingPart(own.identity.channel)

    def key_holder_part(self, own: PartyKeys) -> Callable[[Attempt], tuple[PadsPart, bytes]]:
        secret = partial(own.record.lasting, own.directory.session)
        # No key of the attempt is returned: the agreement has the pinned ones.
        return lambda attempt: (
            PadsPart(secret(), self._plan, attempt.spec, own.identity.channel, own.record.row),
            b"",
        )


class PaddingPart:
    """The clients' part. Its bytes follow from the recorded secret."""

    form: ClassVar[Form] = "masked"

    def conceal(self, agreed: Agreement, member: int, secret: SecretKey) -> dict[str, Conceal]:
        pads = [([seed], ()) for seed in seeds_of(secret, agreed, member)]
        return Masker(agreed.vectors, pads).by_name()

    def message(
        self,
        agreed: Agreement,
        member: int,
        secret: SecretKey,
        releases: tuple[Release, ...],
        own: Identity,
    ) -> PaddedInput:
        # Derived again from the recorded secret: an attempt that is run again sends the same bytes.
        seeds = seeds_of(secret, agreed, member)
        boxes = tuple(box(secret, agreed, member, i, seed) for i, seed in enumerate(seeds))
        vectors = vectors_digest([release._numbers for release in releases])
        text = signed_input(agreed, member, vectors, boxes_digest([one.raw for one in boxes]))
        return PaddedInput(releases=releases, boxes=boxes, signature=own.signing.sign(text))


@dataclass(frozen=True)
class Input:
    """One member's input: a word for each value, and its boxes."""

    vectors: tuple[Words, ...] = field(repr=False)
    boxes: tuple[Share, ...]


@dataclass(frozen=True, eq=False)
class UnpaddingPart:
    """The server's part. It keeps each member's vectors, 4 bytes a value up to 32 bits and 8 above.

    key: the key that the reply is sealed to.
    """

    key: AgreementKey
    phase: ClassVar[str] = _PHASE
    reply: ClassVar[type[PadReply]] = PadReply

    def limits(self, agreed: Agreement) -> dict[type[Any], Limit]:
        vectors, size, members = len(agreed.vectors), pads_bytes(agreed), len(agreed.roster.members)
        return {
            PaddedInput: Limit(size + BOX_BYTES * vectors + OVERHEAD, 2 * vectors),
            # Pads or names: if vectors are short, the names of bad members are longer.
            PadReply: Limit(max(size + SEALING_BYTES, 8 * members) + OVERHEAD, members),
        }

    def signed(self, agreed: Agreement, member: int, said: PaddedInput) -> tuple[bytes, bytes]:
        vectors, count = delivered(said.releases, agreed.names, "masked"), len(agreed.vectors)
        boxes = [one.raw for one in said.boxes]
        if list(map(len, boxes)) != [BOX_BYTES] * count:
            raise CryptoError(
                f"Expected {count} boxes of {BOX_BYTES} bytes each, got {len(boxes)} of "
                f"{sum(map(len, boxes))} bytes: the client is not in the sum."
            )
        digest = vectors_digest([one.numbers for one in vectors])
        return digest, signed_input(agreed, member, digest, boxes_digest(boxes))

    def add(self, agreed: Agreement, total: Any, sender: str, said: Any) -> AppendMap[int, Input]:
        both = zip(said.releases, agreed.vectors, strict=True)
        read = tuple(unpack(one.numbers, vector.length, vector.bits) for one, vector in both)
        inputs: AppendMap[int, Input] = AppendMap() if total is None else total
        return inputs.having(agreed.roster.numbers[sender], Input(read, said.boxes))

    def request(
        self, agreed: Agreement, total: Mapping[int, Input], evidence: Evidence
    ) -> tuple[Mapping[int, Input], PadRequest]:
        boxes = tuple(one for member in evidence["members"] for one in total[member].boxes)
        return total, PadRequest(boxes=boxes, **evidence)

    def read(
        self, agreed: Agreement, kept: Mapping[int, Input], request: PadRequest, reply: PadReply
    ) -> Work | Unboxable | None:
        asked = request_digest(agreed, request)
        if reply.request != asked:
            raise CryptoError("Expected a reply to our request, got one to another.")
        if reply.bad:
            if reply.pads:
                raise CryptoError("Expected members of our request without pads, got pads beside them.")
            return Unboxable(reply.bad)
        if reply.pads == REFUSED:
            return None
        try:
            pads = pads_of(agreed, unseal(self.key, reply.pads, asked))
        except CryptoError:
            raise CryptoError(
                "Expected sums of pads, sealed to us for our request, got bytes that do not open to them: "
                "the reply is to another request, or was changed."
            ) from None
        inputs = [kept[member].vectors for member in request.members]
        return Work(
            lambda: {
                vector.name: unpadded([one[i] for one in inputs], pads[i], vector.bits)
                for i, vector in enumerate(agreed.vectors)
            }
        )


@dataclass(frozen=True, eq=False)
class PadsPart:
    """The key holder's lasting secret, and the seals and noise derived from it under its own plan.

    The server may subtract the pads from other vectors than the signed ones. It learns nothing by that, since
    the pads of other clients are in no sum.

    spec: the specs of the summed values. key: the key for which clients box their seeds. row: binds a row
    of correlated noise (`Journal.row`). `asked` in the methods is the digest of the server's request.
    """

    secret: SecretKey
    plan: Plan
    spec: Sequence[ValueSpec]
    key: AgreementKey
    row: Callable[[Header, str, bytes], int | None]
    phase: ClassVar[str] = _PHASE
    boxed: ClassVar[bool] = True

    def limits(self, agreed: Agreement) -> dict[type[Any], Limit]:
        members, vectors = len(agreed.roster.members), len(agreed.vectors)
        most = members * ((BOX_BYTES + 4) * vectors + _MEMBER_BYTES) + OVERHEAD
        return {PadRequest: Limit(most, members * (vectors + 3))}

    def complete(self, agreed: Agreement, request: PadRequest) -> bool:
        return len(request.boxes) == len(agreed.vectors) * len(request.members)

    def signed(self, agreed: Agreement, request: PadRequest, place: int) -> bytes:
        boxes = boxes_digest([one.raw for one in request.of(place)])
        return signed_input(agreed, request.members[place], request.inputs[place].raw, boxes)

    def digest(self, agreed: Agreement, request: PadRequest) -> bytes:
        return request_digest(agreed, request)

    def unbox(self, agreed: Agreement, request: PadRequest) -> tuple[Keys | None, ...]:
        return tuple(
            _opened(self.key, agreed, request, place, member) for place, member in enumerate(request.members)
        )

    def open(self, agreed: Agreement, request: PadRequest, keys: Sequence[Keys]) -> PadReply:
        """The sealed sums of pads. The seal's secret is derived, so a restart sends the same bytes.

        A refusal if correlated noise of this round was drawn for another request, such as for a retry after
        a lost answer.
        """
        asked = request_digest(agreed, request)
        if (noise := self.noise(agreed, asked)) is None:
            return self.refusal(agreed, request)
        summed = total_pads(agreed, keys, noise)
        pads = seal(agreed.server, summed, asked, secret=derived(self.secret, b"two-server seals"))
        return PadReply(request=asked, bad=(), pads=pads)

    def refusal(self, agreed: Agreement, request: PadRequest, bad: tuple[int, ...] = ()) -> PadReply:
        return PadReply(request=request_digest(agreed, request), bad=bad, pads=REFUSED)

    def noise(self, agreed: Agreement, asked: bytes) -> dict[str, NDArray[np.int64]] | None:
        """The plan's noise on each sum, by name, if the key holder adds it: one draw for each sum.

        None if correlated noise of this round was drawn for another request: the key holder sees no total, so
        the request stands for it, with the question, the set and the boxes.

        The noise is derived from the sum's place and from the one request on record for it. If the key holder
        lost its record, a request for another set of clients would get independent noise. With the same
        noise, the difference of two totals would have none.
        """
        lengths = {vector.name: vector.length for vector in agreed.vectors}
        # A value that is constant in the session has one question in all rounds, so its noise is drawn once.
        questions = {question.name: question for question in agreed.openings}
        drawn = {}
        for spec in self.spec:
            name, mechanism = spec.name, Protection(self.plan, spec).mechanism
            if mechanism.total_by != KEY_HOLDER:
                continue
            size, at = lengths[name], agreed.header
            if mechanism.correlation.correlated:
                before = self.row(at, name, asked)
                found = row_noise(mechanism, self.secret, at, Sum(spec, size), before)
            else:
                found = mechanism.total_noise(KEY_HOLDER, size, self._source(questions[name], asked))
            if found is None:
                return None
            drawn[name] = found
        return drawn

    def _source(self, question: Question, asked: bytes) -> Source:
        numbers = u32(question.round, question.ask, question.again)
        purpose = fields(b"two-server noise", question.session, numbers, question.name.encode(), asked)
        return Source(derived(self.secret, purpose))


def _opened(
    key: AgreementKey, agreed: Agreement, request: PadRequest, place: int, member: int
) -> Keys | None:
    try:
        return opened(key, agreed, member, request.of(place))
    except CryptoError:
        # The server learns which members' boxes do not open. It does not learn the reason.
        return None
