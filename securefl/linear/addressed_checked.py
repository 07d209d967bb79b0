"""Checked openings whose score the key holder reads: for files, where the server learns no score.

    server      declares d = H(salt, V), as in `checked`
    client      its ciphertext, its signing key and its signature
    server      V and salt; per client the integer a = (V c0)_0 + c + noise, and c1; c is the offset and the
                clear part's product
    key holder  checks all of it, against the clients' keys that it was given; reads a + (V c1 s)_0 + noise

* The server gets nothing back, so a *malicious* one learns nothing of its own. It can have the key holder
  read a shifted score, and no other number of an honest client.
* The key holder sees V, and so the baseline; a score with noise of both; and which client's key signed.
* A server with one client of the key holder's list can have it read one entry of another's vector.
* Key holder and server together open everything.
"""

from __future__ import annotations

import random

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.keys import PublicKey
from securefl.core.linear import Floats
from securefl.core.signing import SIGNATURE_BYTES, SigningKey
from securefl.he import gate
from securefl.he.flooding import wide_gaussian
from securefl.linear.checked import CheckedServer, Declared, Question, Signed, commitment
from securefl.linear.checks import Checks, Coefficients, form, unpacked
from securefl.linear.encryptor import Encryptor, admitted
from securefl.linear.pad_terms import KEY, SALT

QUERY = ""
"""The digest of the weights is one for all clients, whatever name each has."""


def message_bytes(checks: Checks) -> int:
    """Exact length of a client's message."""
    return checks.terms.ciphertext_bytes + KEY + SIGNATURE_BYTES


def item_bytes(checks: Checks) -> int:
    """Exact length of an item: the client's key, its signature, one integer, and c1."""
    return KEY + SIGNATURE_BYTES + checks.share_bytes + checks.half_bytes


def head_bytes(checks: Checks) -> int:
    """Exact length of what stands before the items: the salt and the weights."""
    return SALT + checks.weights_bytes


def message(hidden: Floats, encryptor: Encryptor, question: Question, own: SigningKey) -> bytes:
    """The client's part: its message. Errors as for `Encryptor.encrypt`."""
    whole = question.signed(encryptor.encrypt(hidden), own.public.raw.hex(), own)
    return whole[:-SIGNATURE_BYTES] + own.public.raw + whole[-SIGNATURE_BYTES:]


def addressed(
    raw: bytes, question: Question, declared: Declared, offset: float, rng: random.Random, *, sender: str
) -> bytes:
    """The server's part: a client's item for the key holder.

    Args:
        raw: the client's message.
        question: its name is the client's label.
        declared: the weights.
        offset: c.
        rng: of the noise.
        sender: the name for refusals.

    Raises:
        RemoteProtocolError: names a client whose message or signature is not for this question, or whose
            score could wrap.
    """
    checks = question.checks
    terms, p = checks.terms, checks.terms.parameters
    if len(raw) != message_bytes(checks):
        raise _refusal(f"Expected {message_bytes(checks)} bytes, got {len(raw)}.", sender, "gate")
    if abs(offset) + terms.largest > terms.capacity:
        raise _refusal(
            "Expected scores that fit, got a baseline whose scores could wrap. Declare tighter bounds or "
            "larger parameters (of profiles: --weight-bound, or --params strong).",
            sender,
            "score",
        )
    ciphertext, end = raw[: terms.ciphertext_bytes], raw[terms.ciphertext_bytes :]
    public, signature = PublicKey(end[:KEY]), end[KEY:]
    admitted(ciphertext, gate.tag("ciphertext", question.key, terms.digest()), terms, sender=sender)
    # The evaluator's own key signs the whole file, so this server signs nothing.
    server = CheckedServer(question, 0, declared, SigningKey.generate())
    try:
        arrived = server.admit(ciphertext + signature, 0, public.raw.hex(), public)
    except RemoteProtocolError as error:
        raise _refusal(f"Expected a message that its client signed for this match: {error}", sender) from None
    whole = arrived.own + round(offset / terms.unit) + wide_gaussian(terms.sigma, rng)
    number = gate.pack_integer(whole % p.modulus, p.modulus)
    return public.raw + signature + number + arrived.halves.c1


def checked_head(head: bytes, checks: Checks) -> tuple[Coefficients, bytes]:
    """The weights before the items, and their digest. Raises ConfigError if no query in bounds has them."""
    salt, sent = head[:SALT], head[SALT:]
    weights = unpacked(sent, checks)
    if (wrong := form(weights, checks)) is not None:
        raise ConfigError(wrong)
    # Computed from the weights that came, never taken from a header.
    return weights, commitment(checks, QUERY, salt, sent)


def parsed(item: bytes, checks: Checks, *, sender: str) -> tuple[PublicKey, Signed, int]:
    """The client's key, what it signed, and the server's integer, of `item_bytes` bytes."""
    at = KEY + SIGNATURE_BYTES
    end = at + checks.share_bytes
    number = gate.unpack_integer(item[at:end], checks.terms.parameters.modulus, sender=sender)
    signed = Signed(item[KEY:at], item[end:])
    return PublicKey(item[:KEY]), signed, number


def _refusal(what: str, sender: str, phase: str = "checks") -> RemoteProtocolError:
    return RemoteProtocolError(what, sender=sender, phase=phase)
