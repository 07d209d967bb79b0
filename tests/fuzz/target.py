"""A decoder under hostile bytes, with messages that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from securefl.core.errors import SecureFLError


@dataclass(frozen=True)
class Target:
    """One place where bytes come in.

    Attributes:
        name: of the decoder and its bytes.
        enter: decodes the bytes. Any error but the package's own is a finding.
        valid: a message that it takes.
        sign: mends checksums and signatures of damaged bytes, so that what lies behind them is reached.
        weight: how often it is worth trying.
        more: further messages of its kinds, which it may refuse.
    """

    name: str
    enter: Callable[[bytes], object]
    valid: bytes
    sign: Callable[[bytes], bytes] = lambda raw: raw
    weight: int = 4
    more: tuple[bytes, ...] = ()

    def refuses(self, raw: bytes) -> bool:
        """Whether it refuses these bytes in the package's own words. Raises what else the decoder raises."""
        try:
            self.enter(raw)
        except SecureFLError:
            return True
        return False

    def refuses_damaged(self, raw: bytes) -> bool:
        """The same of damaged bytes, mended."""
        return self.refuses(self.sign(raw) if len(raw) > 100 else raw)
