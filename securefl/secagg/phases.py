"""The phases of secure aggregation as two tables: what moves each party, what it checks, what follows.

The machines do what is written here and nothing else. A test drives them through every row. An event without
a row changes nothing. A message of an earlier phase, or a second one, is ignored. A message that is not due
yet, or that fails a check, is refused, and the state stands. A client hears and answers the server alone.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

from securefl.core.acts import Act, Begin
from securefl.core.hiding import Hide
from securefl.core.release import SERVER as TO_SERVER
from securefl.secagg import client_states as client
from securefl.secagg import server_states as server
from securefl.secagg.client_states import Advertised, Beginning, Dealing, Finished, Holding
from securefl.secagg.messages import (
    Advertise,
    Complaint,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Shares,
    Survivors,
    Unmask,
)
from securefl.secagg.server_states import Advertising, Closing, Opening, Sharing, Summing, Working
from securefl.secagg.unmasking import Unmasking

BEGIN: Final = "begin"
DEADLINE: Final = "deadline"

Asked = type[Any] | Act
"""Slow or guarded work, by its order; a `Record` by its act."""
Event = type[Any] | Act | Literal["begin", "deadline"]
"""A message that comes, the host's answer to what it was asked for, the beginning or a deadline."""


@dataclass(frozen=True)
class Row:
    """In each of these states, each of these events has this effect, under this condition.

    Attributes:
        state: one class or several; None before the beginning.
        event: one or several.
        checked: the condition; it tells rows of one state and event apart.
        follows: class of the next state; None where nothing changes but the deadlines that were counted.
        sends: kind of the message, and to whom: the server, or everybody whose message of this kind came.
        asks: what the host is asked for.
        result: of the server "summed", "aborted", or "named" where a proven culprit caused it.
    """

    state: type[Any] | tuple[type[Any], ...] | None
    event: Event | tuple[Event, ...]
    _: KW_ONLY
    checked: str
    follows: type[Any] | None = None
    sends: tuple[type[Any], type[Any] | str] | None = None
    asks: Asked | None = None
    result: str | None = None

    @property
    def states(self) -> tuple[type[Any] | None, ...]:
        return self.state if isinstance(self.state, tuple) else (self.state,)

    @property
    def events(self) -> tuple[Event, ...]:
        return self.event if isinstance(self.event, tuple) else (self.event,)


_UNDER_WAY = (Beginning, Advertised, Dealing, Holding, client.Agreeing)

CLIENT: Final = (
    Row(None, BEGIN, follows=Beginning, asks=Begin,
        checked="The parameters are those of its own plan, and protect as much as the plan asks."),
    Row(Beginning, Begin, follows=Advertised, sends=(Advertise, TO_SERVER),
        checked="The record lets it enter this attempt, and gives its secret."),
    Row(Beginning, Begin, follows=Finished, result="refused",
        checked="The record forbids to enter."),
    Row(Advertised, RosterClosed, follows=Advertised, asks="deal",
        checked="The roster has at least the least survivors, all pinned. Each signed its key and nonce "
                "for this place. Its own entry is unchanged."),
    Row(Advertised, "deal", follows=Dealing, sends=(Shares, TO_SERVER),
        checked="The record holds this roster."),
    Row(Advertised, "deal", follows=Finished, result="refused",
        checked="The record holds another roster, or a newer attempt."),
    Row(Dealing, Dealt, follows=Dealing, asks="mask",
        checked="There are at least the least survivors as dealers, itself among them. The box of each "
                "neighbour among them opens to shares that match their hashes."),
    Row(Dealing, Dealt, follows=Finished, sends=(Complaint, TO_SERVER), result="complained",
        checked="A box does not, and its dealer signed it."),
    Row(Dealing, "mask", follows=Holding, asks=Hide,
        checked="The record holds these dealers."),
    Row(Dealing, "mask", follows=Finished, result="refused",
        checked="The record holds other dealers, or a newer attempt."),
    Row(Holding, Hide, follows=Holding, sends=(MaskedInput, TO_SERVER),
        checked="There is one masked release for each vector."),
    Row(Holding, Hide, follows=Finished, result="abstained",
        checked="The host abstains."),
    Row(Holding, Survivors, follows=client.Agreeing, asks="sign",
        checked="Its input is out. Survivors and dropped partition the dealers. At least the least "
                "survivors survive, itself among them, each with the least degree among them."),
    Row(client.Agreeing, Survivors,
        checked="They are the survivors that it was shown before. Any others are refused."),
    Row(client.Agreeing, "sign", follows=client.Agreeing, sends=(Consistent, TO_SERVER),
        checked="Active mode. The record holds these survivors."),
    Row(client.Agreeing, "sign", follows=client.Agreeing, sends=(Unmask, TO_SERVER), result="answered",
        checked="Semi-honest mode. The record holds these survivors."),
    Row(client.Agreeing, "sign", follows=Finished, result="refused",
        checked="The record holds other survivors, or a newer attempt."),
    Row(client.Agreeing, Quorum, follows=client.Agreeing, sends=(Unmask, TO_SERVER), result="answered",
        checked="Its own signature is out. A quorum signed these survivors. Each surviving neighbour "
                "signed them, or signed its input under the same dealers."),
    Row(_UNDER_WAY, DEADLINE,
        checked="Fewer deadlines passed in this state than its patience."),
    Row(_UNDER_WAY, DEADLINE, follows=Finished, result="missed",
        checked="As many passed, and it has not answered."),
)  # fmt: skip

SERVER: Final = (
    Row(None, BEGIN, follows=Advertising,
        checked="Nothing is checked. Every client begins by itself."),
    Row(Advertising, Advertise, follows=Advertising,
        checked="The pinned member signed its key and nonce for this place. The key is not weak."),
    Row(Advertising, (Advertise, DEADLINE), follows=Sharing, sends=(RosterClosed, Advertise),
        checked="Everybody advertised; at the deadline, at least the least survivors did."),
    Row(Advertising, DEADLINE, follows=Closing, result="aborted",
        checked="Fewer advertised."),
    Row(Sharing, Shares, follows=Sharing,
        checked="It is in the closed roster. Hashes and boxes have their number and lengths. It signed "
                "the root of their tree."),
    Row(Sharing, (Shares, DEADLINE), follows=Summing, sends=(Dealt, Shares),
        checked="Everybody of the closed roster dealt; at the deadline, at least the least survivors "
                "did."),
    Row(Sharing, DEADLINE, follows=Closing, result="aborted",
        checked="Fewer dealt."),
    Row(Summing, MaskedInput, follows=Summing,
        checked="It dealt, and did not complain. Its vectors have their lengths. It signed the dealers."),
    Row(Summing, Complaint, follows=Summing,
        checked="It dealt, and its input did not come. A box that it accuses does not open under the "
                "key that it shows."),
    Row(Summing, Complaint, follows=Closing, result="named",
        checked="A box opens to shares that do not match their hashes, or more accuse its dealer than "
                "may lie."),
    Row(Summing, (MaskedInput, Complaint, DEADLINE), follows=server.Agreeing, sends=(Survivors, MaskedInput),
        checked="Active mode. Of every dealer an input or a complaint came, or the deadline passed. At "
                "least the least survivors survive, each with the least degree among them."),
    Row(Summing, (MaskedInput, Complaint, DEADLINE), follows=Opening, sends=(Survivors, MaskedInput),
        checked="Semi-honest mode. The same."),
    Row(Summing, (MaskedInput, Complaint, DEADLINE), follows=Closing, result="aborted",
        checked="The same, but fewer survive, or one has a lower degree."),
    Row(server.Agreeing, Consistent, follows=server.Agreeing,
        checked="A survivor signed these dealers and survivors."),
    Row(server.Agreeing, (Consistent, DEADLINE), follows=Opening, sends=(Quorum, Consistent),
        checked="Every survivor signed; at the deadline, at least a quorum did."),
    Row(server.Agreeing, DEADLINE, follows=Closing, result="aborted",
        checked="Fewer signed."),
    Row(Opening, Unmask, follows=Opening,
        checked="It survived, and signed in active mode. Each share matches the hash that its dealer "
                "published."),
    Row(Opening, (Unmask, DEADLINE), follows=Working, asks=Unmasking,
        checked="Everybody asked answered, or the deadline passed. Of every secret there are threshold "
                "shares."),
    Row(Opening, (Unmask, DEADLINE), follows=Closing, result="aborted",
        checked="The same, but of one secret there are fewer."),
    Row(Working, Unmasking, follows=Closing, result="summed",
        checked="Each seed matches its hash, and each key the one that was advertised."),
    Row(Working, Unmasking, follows=Closing, result="named",
        checked="One of a dealer does not."),
    Row((Advertising, Sharing, Summing, server.Agreeing, Opening), DEADLINE,
        checked="Fewer deadlines passed in this phase than its patience."),
)  # fmt: skip
