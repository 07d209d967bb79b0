"""One number per client under encryption: the divergence of its profile from a baseline, and nothing else.

terms       what is declared in public, and what follows from it
encryptor   values to ciphertexts
evaluator   the server's part, and why nobody learns more than the output
opener      the key holder's part, blindly
batches     many clients in one opened ciphertext; `isolation` opens them singly where one spoils a batch
pads        clients without a homomorphic library; `pad_evaluator` is the server's part
literal     the published form, by polynomials: a reference
"""
