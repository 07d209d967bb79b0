"""Checked openings whose score the key holder reads: `addressed` has the protocol."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from securefl.core.errors import RemoteProtocolError
from securefl.core.formats import prefix
from securefl.core.keys import PublicKey
from securefl.core.linear import Floats
from securefl.core.signing import SIGNATURE_BYTES, SigningKey
from securefl.he import gate
from securefl.he.flooding import wide_gaussian
from securefl.he.gate import Residues
from securefl.linear.addressed import Opening, constant_of
from securefl.linear.checked import admit, product_of, share_of, signed, verified
from securefl.linear.checks import Checks
from securefl.linear.encryptor import Encryptor
from securefl.linear.pad_terms import KEY
from securefl.linear.turn import SALT, Declared, PublicQuery, refusal


@dataclass(frozen=True, eq=False)
class CheckedFiles:
    """Checked ciphertexts between files. key: the key holder's for these terms."""

    terms: Checks
    key: Any = None

    loose_bytes = 0

    @property
    def message_bytes(self) -> int:
        """Exact length of a client's message."""
        return self.terms.message_bytes + KEY

    @property
    def head_bytes(self) -> int:
        """Exact length of what stands before the items: the salt and the weights."""
        return SALT + self.terms.weights_bytes

    @property
    def item_bytes(self) -> int:
        """Exact length of an item: the client's key, its signature, one integer, and c1."""
        return KEY + SIGNATURE_BYTES + self.terms.answer_bytes + self.terms.half_bytes

    def error_bound(self, together: int) -> float:
        """The largest |score - div| of so many scores at once, except with probability 1e-6."""
        return self.terms.terms.error_bound(together, floods=2)

    def message(self, hidden: Floats, name: str, told: bytes, signing: SigningKey | None) -> bytes:
        """The client's part: its message. Errors as for `Encryptor.encrypt`."""
        assert signing is not None
        query = PublicQuery(terms=self.terms, name=name, told=told, key=self.key.session)
        ciphertext, own = Encryptor(self.key, self.terms.terms).encrypt(hidden), signing.public.raw
        whole = signed(query, ciphertext, own.hex(), signing)
        return whole[:-SIGNATURE_BYTES] + own + whole[-SIGNATURE_BYTES:]

    def item(self, declared: Declared, raw: bytes, clear: Floats, name: str) -> bytes:
        """The server's part: a client's item for the key holder.

        Args:
            declared: the weights.
            raw: the client's message.
            clear: the plaintext part.
            name: the client's label, also for refusals.

        Raises:
            RemoteProtocolError: names a client whose message or signature is not for this query, or whose
                score could wrap.
        """
        checks, p = self.terms, self.terms.terms.parameters
        if len(raw) != self.message_bytes:
            raise refusal(f"Expected {self.message_bytes} bytes, got {len(raw)}.", name, "gate")
        constant, end = constant_of(declared, clear, name), checks.terms.ciphertext_bytes
        public = PublicKey(raw[end : end + KEY])
        came = admit(raw[:end] + raw[end + KEY :], checks, self.key.session, sender=name)
        query = PublicQuery(terms=checks, name=name, told=declared.told, key=self.key.session)
        try:
            own = product_of(came, declared, query, public.raw.hex(), public, sender=name)
        except RemoteProtocolError as error:
            what = f"Expected a message that its client signed for this match: {error}"
            raise refusal(what, name, "checks") from None
        whole = own + constant + wide_gaussian(checks.terms.sigma, random.SystemRandom())
        return public.raw + came.signature + gate.pack_integer(whole % p.modulus, p.modulus) + came.c1

    def opening(
        self,
        factors: Sequence[Residues],
        query: PublicQuery,
        known: Callable[[PublicKey, str], None],
        rng: random.Random,
        item: bytes,
        name: str,
    ) -> Opening:
        """The key holder's part: how to open an item.

        Args:
            factors: the weights times the key (`checked.key_factors`).
            query: as `turn.told_weights` returns it.
            known: raises RemoteProtocolError for the key of a client that was not given.
            rng: of the flooding.
            item: `item_bytes` bytes.
            name: the client's label, also for refusals.

        Raises:
            RemoteProtocolError: the client did not sign it for this query.
        """
        checks, p = self.terms, self.terms.terms.parameters
        at, end = KEY + SIGNATURE_BYTES, KEY + SIGNATURE_BYTES + self.terms.answer_bytes
        public = PublicKey(item[:KEY])
        known(public, name)
        own = gate.unpack_integer(item[at:end], p.modulus, sender=name)
        asked = PublicQuery(terms=checks, name=name, told=query.told, key=query.key)
        said, parts = verified(asked, public.raw.hex(), public, item[KEY:at], item[end:], sender=name)

        def opened() -> bytes:
            return gate.pack_integer(
                (own + share_of(factors, parts, checks.terms, rng)) % p.modulus, p.modulus
            )

        whole = hashlib.sha256(prefix("matching/checked/item") + said + item).digest()
        return hashlib.sha256(said).digest(), whole, opened
