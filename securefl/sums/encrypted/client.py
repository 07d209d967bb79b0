"""The client's machine of one encrypted sum: it records the attempt, encrypts, signs and sends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.acts import entering
from securefl.core.agreement import Agreement, Identity, fields, tagged, u32
from securefl.core.errors import RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal, Concealed
from securefl.core.keys import SecretKey
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.release import SERVER, Release
from securefl.sums.encrypted.messages import EncryptedInput


@dataclass(frozen=True)
class Encrypting:
    entered: bool = False
    sent: bool = False


@dataclass(frozen=True, kw_only=True)
class SumClient:
    """The client's machine of one encrypted sum.

    signers: the least number of clients in a total that the key holder opens. encrypt: the encryption
    function of each vector, by name.
    """

    identity: Identity
    agreement: Agreement
    signers: int
    encrypt: Mapping[str, Callable[[NDArray[np.int64]], bytes]]

    def begin(self) -> Step[Encrypting]:
        # Recorded before anything is computed: after a restart the record says which attempts are barred.
        return Step(Encrypting(), need=Need(entering(self.identity.name, self.agreement, self.signers)))

    def expects(self, state: Encrypting) -> Expects:
        return Expects(self.agreement.header, {})

    def receive(self, state: Encrypting, sender: str, message: Any) -> Step[Encrypting]:
        raise RemoteProtocolError(
            f"Expected no message to a client, got {type(message).__name__}.",
            sender=sender,
            phase="encrypting",
        )

    def provide(self, state: Encrypting, answer: SecretKey | tuple[Release, ...] | None) -> Step[Encrypting]:
        done = replace(state, entered=True, sent=True)
        # The deadline came first. The computed value stays here, since the server no longer waits for it.
        if state.sent:
            return Step(state)
        if answer is None:
            return Step(done, result="abstained" if state.entered else "refused")
        if isinstance(answer, SecretKey):
            conceal = {v.name: partial(_encrypted, self.encrypt[v.name]) for v in self.agreement.vectors}
            order = ComputeAndConceal(
                client=self.identity.name, header=self.agreement.header, conceal=conceal
            )
            return Step(replace(state, entered=True), need=Need(order))
        member = self.agreement.roster.numbers[self.identity.name]
        text = signed_input(self.agreement, member, input_digest([release._sealed for release in answer]))
        said = EncryptedInput(releases=answer, signature=self.identity.signing.sign(text))
        return Step(done, out=(Outgoing((SERVER,), said),), result="answered")

    def deadline(self, state: Encrypting) -> Step[Encrypting]:
        return Step(state) if state.sent else Step(replace(state, sent=True), result="missed")


def signed_input(agreement: Agreement, member: int, digest: bytes) -> bytes:
    """The bytes that a client signs: the agreement, its number, and the digest of its ciphertexts."""
    return tagged(b"encrypted", agreement.context, fields(u32(member), digest))


def input_digest(sealed: Sequence[bytes]) -> bytes:
    """SHA-256 over a client's ciphertexts, one per vector."""
    return hashlib.sha256(fields(*sealed)).digest()


def _encrypted(encrypt: Callable[[NDArray[np.int64]], bytes], integers: NDArray[Any]) -> Concealed:
    return Concealed("encrypted", sealed=encrypt(integers))
