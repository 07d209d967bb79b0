"""Acts of secure aggregation that a party records in its journal before it does them.

With the record, a party never contradicts an earlier act, even after a restart. A *question* is one value of
one client. The journal enforces these rules (`storage/journal.py`, and `secagg/SPEC.md`, section 3):

1. Rounds increase. A client does not answer a round below the newest round that it has seen.
2. Attempts at a question increase. A client does new acts in the newest attempt only.
3. The cohort of a later attempt is a subset of the first cohort, and `signers` does not decrease.
4. After a client has signed a set of survivors, it enters no other attempt at the question. A value that is
   constant in a session is one question in the whole session.
5. A client may repeat an act of the newest round byte for byte, in an earlier attempt too: the record returns
   the secret that the act was drawn from. So a round that was interrupted can be repeated unchanged.

It follows that every opened sum has `signers` contributors that no later sum of the question has. Any integer
combination of opened sums keeps the contributors of its first sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from securefl.core.agreement import Agreement, Question
from securefl.core.wire import Header

Act = Literal["deal", "mask", "sign", "open"]


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Guarded work: record that `client` enters this attempt at these questions.

    The host answers with 32 secret bytes (a `SecretKey`), the same bytes whenever the same attempt begins
    again. If the record forbids the attempt, the host answers None.

    Attributes:
        members: names of the attempt's cohort.
        signers: the attempt opens a sum only if at least this many clients sign.
        once: names of the values that are constant in a session.
        context: the agreement's context. A second context at the same place is another attempt, and the
            journal refuses it.
    """

    client: str
    header: Header
    questions: tuple[Question, ...]
    members: tuple[str, ...]
    signers: int
    once: frozenset[str]
    context: bytes


@dataclass(frozen=True, kw_only=True)
class RecordAct:
    """Guarded work: record what `client` is about to do in the attempt that it has entered.

    The host answers True if this act with this digest is on record now, whether the host wrote it just now or
    before a restart. The host answers False if another digest is on record, or if none is on record and the
    attempt is not the newest. Raises nothing.

    Attributes:
        act: one of four. "deal": the client shares its secrets under one closed roster. "mask": the client
            sends its input under the masks of one set of dealers. (If the same input left under the masks of
            a second set, only the self-mask would cover it after those masks are opened.) "sign": the client
            lets one set of survivors be opened, and enters no other attempt afterwards. "open": the key
            holder opens one total.
        digest: the digest of the act's contents, such as the closed roster.

    >>> from securefl.sums import Header, RecordAct
    >>> place = Header(session=bytes(32), round=1, attempt=1, stage=0)
    >>> RecordAct(client="client-0000", header=place, questions=(), act="sign", digest=bytes(32)).act
    'sign'
    """

    client: str
    header: Header
    questions: tuple[Question, ...]
    act: Act
    digest: bytes


def entering(client: str, agreement: Agreement, signers: int) -> Begin:
    """Return the order to enter the attempt of this agreement. Raises nothing.

    Args:
        client: the name of the client that enters.
        agreement: the agreement of the attempt.
        signers: the attempt opens a sum only if at least this many clients sign.

    >>> from securefl.secagg import Roster, Vector
    >>> from securefl.sums import Agreement, Header, Identity, entering
    >>> roster = Roster((Identity.generate("client-0000").member(),))
    >>> place = Header(session=bytes(32), round=1, attempt=1, stage=0)
    >>> vector = Vector(name="update", length=4, bits=32, bound=100)
    >>> agreed = Agreement(header=place, roster=roster, vectors=(vector,), plan=bytes(32), task=bytes(32))
    >>> entering("client-0000", agreed, signers=1).members
    ('client-0000',)
    """
    return Begin(
        client=client,
        header=agreement.header,
        questions=agreement.questions,
        members=tuple(agreement.roster.numbers),
        signers=signers,
        once=frozenset(vector.name for vector in agreement.vectors if vector.once),
        context=agreement.context,
    )
