"""What tests of encrypted matching share."""

from __future__ import annotations

from securefl.signing import SigningKey

SIGNER = SigningKey.generate()
