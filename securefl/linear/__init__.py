"""Linear queries: one number a client, the inner product of its vector with the server's weights.

turn        the protocol: declare, conceal, open once; it is the same under two ciphers
scheme      the sides of the three parties in rounds; in the clear the exchange takes the number itself
pads        the cipher of masked integers, without a homomorphic library; `pad_terms` are its terms
checked     the cipher of CKKS, one signed ciphertext a client; `checks` are its terms
addressed   both between files, where the key holder reads the score
encrypted   encrypted weights, between files, whose openings nobody can check
terms       the public parameters of a key, and the noise and error bound that follow from them
encryptor   values to ciphertexts
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
