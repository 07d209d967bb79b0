"""The ring of CKKS, without rotations, relinearisation or keys for either.

parameters  pinned parameter sets
keys        the key holder's pair
ring        the user of TenSEAL: encode, encrypt, multiply, and residues in and out
gate        our wire form of ring elements; what bytes from a peer must look like
integers    single coefficients of a product with the secret, exactly
flooding    wide noise without structure
openings    what a key has opened: counted, capped and answered again, durably

Two rooms stand on it: `scores` (one number per client) and `sums.encrypted` (exact totals).
"""
