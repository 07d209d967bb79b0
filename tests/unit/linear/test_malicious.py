"""What an evaluator can do that does not follow the protocol, so that no sentence promises otherwise."""

from __future__ import annotations

import numpy as np
from support.tiny_he import BOUNDS, SIGNER

from securefl.he import gate
from securefl.he.keys import KeyPair
from securefl.he.parameters import STRONG_ENCRYPTED, Parameters
from securefl.linear.encrypted import Opener
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Variant


def packed(parameters: Parameters, step: int, first: int, count: int, *, at: int = 0) -> bytes:
    """A polynomial whose product with the key has coefficient `at` = sum of step 3^i s_(first + i)."""
    n = parameters.poly_modulus_degree
    rows = np.zeros((1, len(parameters.primes), n), dtype=np.uint64)
    for i in range(count):
        place = at - first - i
        value = step * 3**i * (1 if place >= 0 else -1)  # x^n = -1
        rows[0, :, place % n] = [value % prime for prime in parameters.primes]
    return gate.pack(rows, parameters.primes)


def digits(value: int, step: int, count: int) -> list[int]:
    """Balanced ternary digits of the multiple of `step` that is nearest to value."""
    rest, found = (2 * value + step) // (2 * step), []
    for _ in range(count):
        digit = (rest + 1) % 3 - 1
        found.append(digit)
        rest = (rest - digit) // 3
    return found


def test_a_few_hundred_openings_read_the_whole_key_and_the_cap_allows_them() -> None:
    """Digits of the key, packed above the flooding, under an encrypted baseline, which nobody can check.

    The key holder tells each opened integer. A cap of 500 lets them through.
    """
    parameters, openings = STRONG_ENCRYPTED, 500
    pair = KeyPair.generate(parameters)
    made = LinearTerms(parameters=parameters, bounds=BOUNDS.linear(84, Variant.FULL), scores=openings)
    opener, n = Opener(pair, made, SIGNER.public), parameters.poly_modulus_degree
    step, per_client = int(12 * made.sigma), 0  # flooding of six sigma leaves a digit as it is
    while step * 3 ** (per_client + 1) < parameters.modulus:
        per_client += 1
    tag, size = (
        gate.tag("addressed", pair.public.session, made.digest()),
        gate.integer_size(parameters.modulus),
    )
    nothing = bytes(gate.residues_size(parameters.polynomials - 2, parameters.primes, n))
    found: list[int] = []
    requests = 0
    while len(found) < n:
        count = min(per_client, n - len(found))
        raw = tag + bytes(size) + packed(parameters, step, len(found), count) + nothing
        reply = opener.opening(raw + SIGNER.sign(raw).raw, "evaluator")[2]()
        found += digits(parameters.centre(int.from_bytes(reply, "little")), step, count)
        requests += 1
    assert found == pair.coefficients().tolist()
    assert requests <= openings
