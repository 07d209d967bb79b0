"""Encrypted sums: clients encrypt, the server adds, the key holder opens the total under a pad.

client      --EncryptedInput-->  server       encrypted releases, and a signature over the agreement and them
server      --SumRequest----->   key holder   blinded totals, and the signatures of the clients in them
key holder  --OpenReply------>   server

terms    the public terms of a sum, and the coding of integers in a ciphertext
parts    encryptor, evaluator and opener of one vector; what each party sees
key_holder    the key holder's machine, and its keys of a round
client, server, messages    the other machines, and their messages
scheme   the scheme's interface to plans and parties

A client starts with the order that it has. The server uses a client's first input and ignores a second. At a
deadline it goes on without late and silent clients. It opens nothing below the least number of contributions.
The key holder opens one total for each sum of a query, in whichever attempt the server requests it. It
answers the same request with the same reply.
"""

from securefl.sums.encrypted.scheme import Encrypted

__all__ = ["Encrypted"]
