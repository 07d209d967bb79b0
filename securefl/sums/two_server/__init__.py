"""Two-server sums: clients pad their integers for the server, and box the pads' seeds for the key holder.

client      --PaddedInput-->  server       x + PRG(s), s in a box, and a signature over the agreement and both
server      --PadRequest--->  key holder   the boxes, and the signatures of those whose boxes they are
key holder  --PadReply----->  server       the sum of PRG(s), sealed; or whose boxes do not open

agreement   what all agree on, the two keys that are pinned in it, and what is signed
pads        seeds, boxes, padded vectors and sums of pads
client, server, key_holder, messages    the machines, and what they say
way         all of it as a way of summing

SPEC.md has every byte, and why it holds.

A client begins by itself, with the order it had before. Of two inputs of a client the first counts. A
deadline goes on without who is late or silent. Below the least number of contributions nothing is opened. The
key holder opens one total of a question, whatever attempt asks for it. The same request gets the same reply.

Sums are exact, at b bits a value and 80 bytes a box. Not promised: that what is padded is within its bounds;
that a client pads with the seed that it boxes; anything against a server and a key holder that collude, or
against a key holder that sees the vectors on their way.
"""

from securefl.sums.two_server.scheme import TwoServer

__all__ = ["TwoServer"]
