"""Fingerprints of long contents."""

from __future__ import annotations

import pytest

from securefl.core import entropy
from securefl.core.entropy import long_fingerprint
from securefl.core.keys import SecretKey

SECRET, CONTENT = SecretKey(bytes(range(32))), bytes(range(256)) * 40


def of(content: bytes = CONTENT, *, secret: SecretKey = SECRET, purpose: bytes = b"content") -> bytes:
    return long_fingerprint(secret, purpose, memoryview(content))


def test_one_content_has_one_fingerprint_of_32_bytes() -> None:
    assert of() == of()
    assert len(of()) == 32


def test_secret_purpose_and_each_bit_of_the_content_count() -> None:
    changed = [CONTENT[:at] + bytes([CONTENT[at] ^ 1]) + CONTENT[at + 1 :] for at in (0, 5_000, 10_239)]
    found = {of(one) for one in (CONTENT, *changed, CONTENT[:-1], CONTENT + b"\0", b"", b"\0")}
    found |= {of(secret=SecretKey(bytes(32))), of(purpose=b"other")}
    assert len(found) == 10


def test_pieces_are_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents beyond the library's limit are taken in pieces, none of which may move."""
    monkeypatch.setattr(entropy, "_PIECE", 100)
    swapped = CONTENT[100:200] + CONTENT[:100] + CONTENT[200:]
    found = {of(one) for one in (CONTENT, swapped, CONTENT[:200], CONTENT[:100], CONTENT[:101])}
    assert len(found) == 5
