"""Two-server sums: clients pad their integers for the server, and box the pads' seeds for the key holder.

client      --PaddedInput-->  server       x + PRG(s), s in a box, and a signature over the agreement and both
server      --PadRequest--->  key holder   the boxes, and the signatures of their clients
key holder  --PadReply----->  server       the sum of PRG(s), sealed; or the members whose boxes do not open

agreement   the agreement, its two pinned keys, and the signed texts
pads        seeds, boxes, padded vectors and sums of pads
client, server, key_holder, messages    the machines, and their messages
scheme      the scheme's interface to plans and parties

SPEC.md has every byte, and why it holds.

A client starts with the order that it has. The server uses a client's first input and ignores a second. At a
deadline it goes on without late and silent clients. It opens nothing below the least number of contributions.
The key holder opens one total for each sum of a query, in whichever attempt the server requests it. It
answers the same request with the same reply.

Sums are exact, at b bits a value and 80 bytes a box. The scheme does not promise that a padded value is
within its bounds, or that a client pads with the seed that it boxes. It promises nothing against a server and
a key holder that collude, or against a key holder that sees the vectors in transit.
"""

from securefl.sums.two_server.scheme import TwoServer

__all__ = ["TwoServer"]
