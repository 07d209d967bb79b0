"""What a signed turn costs its server and its party, by size: wall time, beside encoding and decoding alone.

    python benchmarks/signed_turns.py [--times 200]

The server signs a digest, so the signature itself costs the same for every size. The party verifies it before
it decodes the turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

from securefl.core.agreement import Identity
from securefl.core.release import SERVER
from securefl.deployment.messages import SignedTurn, Turn, decode_envelope, encode_envelope

SIZES = (1_000, 100_000, 4_000_000, 100_000_000)
PARTY, SESSION, VISIT = "client-0000", bytes(32), bytes(16)


def took(work: Callable[[], object], times: int) -> float:
    """Median of the seconds that this takes."""
    spent = []
    for _ in range(times):
        begun = perf_counter()
        work()
        spent.append(perf_counter() - begun)
    return median(spent)


def row(size: int, times: int) -> list[float]:
    """Milliseconds to encode and decode a turn of so many bytes, and to sign, verify, and do all of it."""
    server, turn = Identity.generate(SERVER), Turn.of([(SERVER, bytes(size))])
    public = server.signing.public

    def signed() -> bytes:
        own = SignedTurn.of(turn, session=SESSION, party=PARTY, visit=VISIT, number=1, server=server)
        return encode_envelope(own)

    sent, plain = signed(), encode_envelope(turn)

    def verified() -> Turn:
        own = decode_envelope(sent, SignedTurn, sender=SERVER)
        if not own.is_signed(public, SESSION, PARTY):
            raise ValueError("Expected the server's signature, got another.")
        return decode_envelope(own.turn, Turn, sender=SERVER)

    works: list[Callable[[], object]] = [
        lambda: encode_envelope(turn),
        signed,
        lambda: decode_envelope(plain, Turn, sender=SERVER),
        verified,
    ]
    return [1000 * took(work, times) for work in works]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=200)
    times = parser.parse_args().times
    print("      bytes   encode  and sign    added   decode  and verify    added   (ms, medians)")
    for size in SIZES:
        encode, sign, decode, verify = row(size, max(5, times * 1_000_000 // max(size, 1_000_000)))
        print(
            f"{size:11,} {encode:8.3f} {sign:9.3f} {sign - encode:8.3f} "
            f"{decode:8.3f} {verify:11.3f} {verify - decode:8.3f}"
        )


if __name__ == "__main__":
    main()
