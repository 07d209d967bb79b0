"""Hostile bytes against all three receivers, in a process of its own: a crash there is seen here."""

from __future__ import annotations

import subprocess
import sys
import textwrap

SCRIPT = textwrap.dedent(
    """
    import random, resource, sys
    import numpy as np
    from securefl.errors import RemoteProtocolError
    from securefl.he import gate
    from securefl.he.keys import EncryptionKey, KeyPair
    from securefl.he.match import Encryptor, Evaluator, Opener
    from securefl.he.parameters import COMPACT
    from securefl.he.terms import Terms
    from securefl.keys import PublicKey
    from securefl.signing import SigningKey
    from securefl.profiles import Anchor, Bounds, Profile, Variant, features, query

    SIGNER = SigningKey.generate()
    rng = random.Random(int(sys.argv[1]))
    bounds = Bounds(mean=16, variance_high=64, weight=16)
    terms = Terms(parameters=COMPACT, bounds=bounds, length=10, variant=Variant.FULL, scores=10**6)
    keys, anchor = KeyPair.generate(COMPACT), Anchor(np.zeros(10), np.ones(10))
    client, evaluator, opener = (
        Encryptor(keys.public, terms),
        Evaluator(keys.public, terms, SIGNER),
        Opener(keys, terms, SIGNER.public),
    )
    some = Profile(np.zeros(10), np.ones(10), 1)
    baseline = evaluator.baseline(query(some, anchor, bounds))
    ciphertext = client.encrypt(features(some, anchor, bounds).split(Variant.FULL).hidden)
    blinded = evaluator.match(ciphertext, baseline)
    reply = opener.open(blinded.request)

    def load_key(raw):
        EncryptionKey(COMPACT, PublicKey(raw)).residues()

    def damaged(raw):
        copy = bytearray(raw)
        match rng.randrange(8):
            case 0: return rng.randbytes(rng.randrange(2 * len(raw)))
            case 1: return raw[: rng.randrange(len(raw))]
            case 2: return raw + rng.randbytes(rng.randrange(1, 100))
            case 3: return raw[:16] + rng.randbytes(len(raw) - 16)
            case 4: return raw[:16] + bytes(len(raw) - 16)
            case 5: return raw[:16] + b"\\xff" * (len(raw) - 16)
            case 6:
                start = rng.randrange(len(raw))
                copy[start : start + 64] = rng.randbytes(len(copy[start : start + 64]))
            case _: copy[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        return bytes(copy)

    refused = passed = 0
    for turn in range(600):
        receiver, raw = rng.choice([
            (lambda b: evaluator.match(b, baseline), ciphertext), (opener.open, blinded.request),
            (lambda b: evaluator.unblind(blinded, b), reply), (load_key, keys.public.key.raw)])
        try:
            receiver(damaged(raw)); passed += 1
        except RemoteProtocolError:
            refused += 1
        if turn == 100:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(refused, passed, grown)
    """
)


def test_no_crash_no_other_error_and_no_growth() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "20240501"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    refused, passed, grown_kib = map(int, done.stdout.split())
    assert refused > 300
    assert passed > 10  # single flips that leave a valid ring element are garbage, not a danger
    assert grown_kib < 64 * 1024
