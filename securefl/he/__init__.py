"""Encrypted profile matching: CKKS without rotations, relinearisation or keys for either.

parameters  pinned parameter sets        terms   what is declared in public, and what follows from it
keys        the key holder's pair        gate    our wire form; what bytes from a peer must look like
seal        the user of TenSEAL          classes many clients in one opened ciphertext
client      values to ciphertexts        match   the evaluator, and why nobody learns more than the output
opener      the key holder, blindly      openings  what it opened, durably
flooding    wide noise without structure
isolation   batches of clients, opened singly where one of them spoils a batch
pads, pad_evaluator  clients without a homomorphic library
literal     the published form, by polynomials: a reference
"""
