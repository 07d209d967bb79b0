"""Signatures by keys that belong to nobody."""

from __future__ import annotations

import pytest
from support.every import every

from securefl.core.errors import CryptoError
from securefl.core.keys import PublicKey, SecretKey, Signature
from securefl.core.signing import (
    _WEAK,
    AgreementKey,
    SigningKey,
    cannot_agree,
    has_small_order,
    seal,
    unseal,
    verify,
)

PRIME = 2**255 - 19


def _of(octets: str) -> int:
    return int.from_bytes(bytes.fromhex(octets), "little")


# y coordinates of libsodium's list: order 4, 1, 8, 8, 2, and 0 and 1 unreduced
LISTED = {
    "order 4": 0,
    "order 1": 1,
    "order 8": _of("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    "order 8, the other": _of("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    "order 2": PRIME - 1,
    "order 4, unreduced": PRIME,
    "order 1, unreduced": PRIME + 1,
}
ENCODINGS = [(y | sign << 255).to_bytes(32, "little") for y in LISTED.values() for sign in (0, 1)]


@every("sign", [0, 1])
@every("name", LISTED)
def test_keys_of_small_order_sign_nothing(name: str, sign: int) -> None:
    """R of small order and s = 0 is their signature of every eighth message at least, without any secret."""
    key = PublicKey((LISTED[name] | sign << 255).to_bytes(32, "little"))
    assert has_small_order(key)
    for message in range(40):
        for point in ENCODINGS:
            with pytest.raises(CryptoError, match="small order"):
                verify(key, Signature(point + bytes(32)), b"message %d" % message)


def test_an_ordinary_key_signs_what_it_signed() -> None:
    own = SigningKey.generate()
    assert not has_small_order(own.public)
    verify(own.public, own.sign(b"yes"), b"yes")
    with pytest.raises(CryptoError, match="expected key"):
        verify(own.public, own.sign(b"yes"), b"no")


@every("high", [0, 1 << 255])
@every("added", [0, 2**255 - 19])
def test_keys_that_cannot_agree_are_those_that_agreement_refuses(added: int, high: int) -> None:
    """The seven points of libsodium's list, and each with the bit that X25519 ignores."""
    own, refused = AgreementKey.generate(), 0
    for point in (*sorted(_WEAK), 2, 9, 2**255 - 21):
        if point + added >= 2**255:
            continue
        key = PublicKey(((point + added) | high).to_bytes(32, "little"))
        try:
            own.agree(key, b"")
            assert not cannot_agree(key)
        except CryptoError:
            assert cannot_agree(key)
            refused += 1
    assert refused == (2 if added else 5)


def test_fresh_keys_can_agree() -> None:
    assert not any(cannot_agree(AgreementKey.generate().public) for _ in range(20))


def test_two_messages_that_follow_from_one_secret_have_two_keys() -> None:
    """The nonce is constant: one key for two texts, contexts or receivers would use one stream twice."""
    secret, own = SecretKey(bytes(32)), [AgreementKey(SecretKey(bytes([one]) * 32)) for one in (1, 2)]
    sealed = [
        seal(to.public, plain, context, secret=secret)
        for to in own
        for plain in (b"yes", b"no ")
        for context in (b"here", b"there")
    ]
    assert len({one[:32] for one in sealed}) == 8
    assert seal(own[0].public, b"yes", b"here", secret=secret) == sealed[0]
    assert unseal(own[0], sealed[0], b"here") == b"yes"
    for key, context in ((own[1], b"here"), (own[0], b"there")):
        with pytest.raises(CryptoError):
            unseal(key, sealed[0], context)
