"""Linear queries: one number a client, the inner product of its vector with the server's weights.

Schemes behind one interface (`scheme`); in the clear the exchange takes the number itself:

checked_ckks  one signed ciphertext a client, opened alone and checked
padded      pads: masked integers, for clients without a homomorphic library

Their parts:

terms       the public parameters of a key, and the noise and error bound that follow from them
encryptor   values to ciphertexts
checked     the protocol of checked openings; `checks` are its terms, and weights as integers
evaluator   the server's part under encrypted weights, between files, and what each party sees
opener      the key holder's part, blindly, and its machine, under every scheme
pads        client and key holder under pads; `pad_terms` are theirs
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
