"""Two-server sums: clients pad their integers for the server, and box the pads' seeds for the key holder.

client      --PaddedInput-->  server       x + PRG(s), s in a box, and a signature over the agreement and both
server      --PadRequest--->  key holder   the boxes, and the signatures of their clients
key holder  --PadReply----->  server       the sum of PRG(s), sealed; or the members whose boxes do not open

agreement   the agreement, its two pinned keys, and the signed texts
pads        seeds, boxes, padded vectors and sums of pads
messages    the messages
scheme      the parts of client, server and key holder in the machines of `sums.opened`

SPEC.md has every byte, and why it holds.

Sums are exact, at b bits a value and 80 bytes a box. The scheme does not promise that a padded value is
within its bounds, or that a client pads with the seed that it boxes. It promises nothing against a server and
a key holder that collude, or against a key holder that sees the vectors in transit.
"""

from securefl.sums.two_server.scheme import TwoServer

__all__ = ["TwoServer"]
