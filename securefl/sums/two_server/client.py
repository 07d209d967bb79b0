"""The client's machine of one two-server sum: it records the attempt, pads, boxes its seeds and signs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from securefl.core.acts import entering
from securefl.core.agreement import Identity
from securefl.core.errors import LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import SecretKey
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.release import SERVER, Release
from securefl.sums.two_server.agreement import Agreement, boxes_digest, signed_input, vectors_digest
from securefl.sums.two_server.messages import PaddedInput
from securefl.sums.two_server.pads import Padder, box, seeds_of


@dataclass(frozen=True)
class Padding:
    """`secret` is the recorded secret of this attempt. `sent` is True once the client sends nothing more."""

    secret: SecretKey | None = field(default=None, repr=False)
    sent: bool = False


@dataclass(frozen=True, kw_only=True)
class PadClient:
    """The client's machine of one two-server sum.

    agreement: from its own plan, the pinned keys and its order. signers: the least number of clients in a
    total that the key holder opens.

    Results: "answered", "abstained", "missed", "refused" (on record).
    """

    identity: Identity
    agreement: Agreement
    signers: int

    def begin(self) -> Step[Padding]:
        # Recorded before anything is computed: after a restart the record says which attempts are barred.
        return Step(Padding(), need=Need(entering(self.identity.name, self.agreement, self.signers)))

    def expects(self, state: Padding) -> Expects:
        return Expects(self.agreement.header, {})

    def receive(self, state: Padding, sender: str, message: Any) -> Step[Padding]:
        raise RemoteProtocolError(
            f"Expected no message to a client, got {type(message).__name__}.", sender=sender, phase="padding"
        )

    def provide(self, state: Padding, answer: SecretKey | tuple[Release, ...] | None) -> Step[Padding]:
        done = replace(state, sent=True)
        # The deadline came first. The computed value stays here, since the server no longer waits for it.
        if state.sent:
            return Step(state)
        if answer is None:
            return Step(done, result="refused" if state.secret is None else "abstained")
        if isinstance(answer, SecretKey):
            padder = Padder(self.agreement, seeds_of(answer, self.agreement, self._member))
            conceal = {v.name: partial(padder, number) for number, v in enumerate(self.agreement.vectors)}
            order = ComputeAndConceal(
                client=self.identity.name, header=self.agreement.header, conceal=conceal
            )
            return Step(replace(state, secret=answer), need=Need(order))
        if state.secret is None:
            raise LocalProtocolError("Expected the secret of this attempt before its releases, got none.")
        said = self._said(state.secret, answer)
        return Step(done, out=(Outgoing((SERVER,), said),), result="answered")

    def deadline(self, state: Padding) -> Step[Padding]:
        return Step(state) if state.sent else Step(replace(state, sent=True), result="missed")

    @property
    def _member(self) -> int:
        return self.agreement.roster.numbers[self.identity.name]

    def _said(self, secret: SecretKey, releases: tuple[Release, ...]) -> PaddedInput:
        wanted = [(vector.name, "masked") for vector in self.agreement.vectors]
        if [(release.key.name, release.form) for release in releases] != wanted:
            raise LocalProtocolError(f"Expected one padded release for each of {wanted}, got {releases}.")
        # Derived again from the recorded secret: an attempt that is run again sends the same bytes.
        seeds = seeds_of(secret, self.agreement, self._member)
        boxes = tuple(box(secret, self.agreement, self._member, i, seed) for i, seed in enumerate(seeds))
        vectors = vectors_digest([release._numbers for release in releases])
        text = signed_input(self.agreement, self._member, vectors, boxes_digest([one.raw for one in boxes]))
        return PaddedInput(releases=releases, boxes=boxes, signature=self.identity.signing.sign(text))
