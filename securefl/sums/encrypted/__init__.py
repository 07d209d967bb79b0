"""Encrypted sums: clients encrypt, the server adds, the key holder opens the total under a pad.

client      --EncryptedInput-->  server       encrypted releases, and a signature over the agreement and them
server      --SumRequest----->   key holder   blinded totals, and the signatures of the clients in them
key holder  --OpenReply------>   server

terms    the public terms of a sum, and the coding of integers in a ciphertext
parts    encryptor, evaluator and opener of one vector; what each party sees
keys     the key holder's keys of a round
scheme, messages    the parts of client, server and key holder in the machines of `sums.opened`
"""

from securefl.sums.encrypted.scheme import Encrypted

__all__ = ["Encrypted"]
