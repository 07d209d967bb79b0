"""A secret key stays out of logs, pickles and copies."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support.every import every

from securefl.core.agreement import Identity
from securefl.core.errors import LocalProtocolError
from securefl.core.keys import PublicKey, SecretKey, Share, Signature

SECRET = b"correct horse battery staple"


@dataclasses.dataclass(frozen=True)
class Holder:
    key: SecretKey


@every(
    "leak",
    [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda key: pickle.dumps(key, protocol=0),
        lambda key: copy.deepcopy({"key": [key]}),
        lambda key: dataclasses.asdict(Holder(key)),
    ],
)
def test_a_secret_key_is_not_copied_out(leak: Callable[[SecretKey], Any]) -> None:
    with pytest.raises(LocalProtocolError, match="neither pickled"):
        leak(SecretKey(SECRET))


@every("show", [repr, str, "{}".format, lambda key: repr(Holder(key)), lambda k: f"{k!s}"])
def test_printing_shows_nothing(show: Callable[[SecretKey], str]) -> None:
    text = show(SecretKey(SECRET))
    assert "<redacted>" in text
    assert "horse" not in text
    assert SECRET.hex() not in text


def test_comparison_and_hash() -> None:
    assert SecretKey(SECRET) == SecretKey(SECRET)
    assert SecretKey(SECRET) != SecretKey(SECRET[:-1] + b"E")
    assert SecretKey(SECRET) != SECRET
    with pytest.raises(TypeError, match="unhashable"):
        hash(SecretKey(SECRET))
    assert SecretKey(SECRET).reveal() == SECRET


def test_a_secret_key_has_no_room_for_other_attributes() -> None:
    with pytest.raises(AttributeError):
        SecretKey(SECRET).note = "x"  # type: ignore[attr-defined]


@every("wrong", [b"", "text", bytearray(b"x"), None, 7])
def test_a_secret_is_some_bytes(wrong: Any) -> None:
    with pytest.raises(LocalProtocolError, match="at least one byte"):
        SecretKey(wrong)


def test_public_types_are_told_apart_and_the_fingerprint_is_sha256() -> None:
    assert PublicKey(b"a") != Share(b"a") != Signature(b"a")  # type: ignore[comparison-overlap]
    assert PublicKey(b"a").fingerprint() == hashlib.sha256(b"a").hexdigest()[:32]


def test_the_two_keys_of_an_identity_have_two_secrets() -> None:
    own, again = (Identity.of("client-0000", SecretKey(bytes(32))) for _ in range(2))
    assert own.signing.secret != own.channel.secret
    assert own.member() == again.member()
