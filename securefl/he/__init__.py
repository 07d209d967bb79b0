"""Encrypted profile matching: CKKS without rotations, relinearisation or keys for either.

parameters  pinned parameter sets        terms   what is declared in public, and what follows from it
keys        the key holder's pair        gate    our wire form; what bytes from a peer must look like
seal        the only user of TenSEAL     match   client, evaluator and key holder
"""
