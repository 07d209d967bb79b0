"""Encrypted sums: clients encrypt, the server adds, the key holder opens the total under a pad.

client      --EncryptedInput-->  server       encrypted releases, and a signature over the agreement and them
server      --SumRequest----->   key holder   blinded totals, and the signatures of whose inputs are in them
key holder  --OpenReply------>   server

terms    what all declare in public, and how integers stand in a ciphertext
parts    encryptor, evaluator and opener of one vector; what each party sees
keys     the key holder's key of the round
client, server, key_holder, messages    the machines, and what they say
way      all of it as a way of summing

A client begins by itself, with the order it had before. Of two inputs of a client the first counts. A
deadline goes on without who is late or silent. Below the least number of contributions nothing is opened. The
key holder opens one total of a question, whatever attempt asks for it. The same request gets the same reply.
"""

from securefl.sums.encrypted.scheme import Encrypted

__all__ = ["Encrypted"]
