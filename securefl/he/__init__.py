"""Homomorphic encryption with CKKS (TenSEAL), without rotations, relinearisation or keys for either.

parameters  pinned parameter sets
keys        the key holder's pair
ring        the user of TenSEAL: encode, encrypt, multiply, and residues in and out
zeros       encryptions of zero, made beforehand and used once
gate        the wire form of ring elements, and the checks of a peer's bytes
integers    single coefficients of a product with the secret, exactly
flooding    wide noise without structure
openings    a durable count of a key's openings, with a cap and stored replies

Two rooms stand on it: `scores` (one number per client) and `sums.encrypted` (exact totals).
"""
