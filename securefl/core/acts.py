"""Acts that a party puts on record before it does them, so that it never contradicts one, even after a
restart.

A *question* is one value of one client. A journal holds these rules (`storage/journal.py`, and
`secagg/SPEC.md`, section 3):

1. Rounds go up. A client answers nothing of a round below the newest it has seen.
2. Attempts at a question go up. A client does new acts in the newest attempt only.
3. The cohort of a later attempt is a subset of the first's, and its signers are no fewer.
4. Once it has signed a set of survivors, a client enters no other attempt at the question. A value that
   cannot change is one question in the whole session.
5. An act of the newest round may be repeated, byte for byte, in an earlier attempt too: the record gives back
   the secret that it was drawn from. So a round that was cut off can be played again as it was.

So every opened sum has `signers` contributors that no later sum of the question has. Any integer combination
of opened sums keeps the contributors of its first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from securefl.core.agreement import Agreement, Question
from securefl.core.wire import Header

Act = Literal["deal", "mask", "sign", "open"]


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Guarded work: put on record that `client` enters this attempt at these questions.

    The host answers with 32 secret bytes (a `SecretKey`), the same whenever the same attempt begins again. It
    answers None if the record forbids to enter.

    Attributes:
        members: names of the attempt's cohort.
        signers: the least number of clients without whom the attempt opens nothing.
        once: names of the values that cannot change in a session.
        context: the agreement's context. Another context in the same place is another attempt, and refused.
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
    """Guarded work: put on record what `client` is about to do in the attempt it is in.

    Attributes:
        act: "deal": share its secrets under one closed roster. "mask": send its input under the masks of one
            set of dealers. (Under the masks of a second set, only the self-mask would cover it once those are
            opened.) "sign": let one set of survivors be opened, and enter no other attempt afterwards.
            "open": the key holder opens one total.
        digest: the digest of the act's contents, such as the closed roster.

    The host answers True if this very act, digest included, is on record now, whether it was written a moment
    ago or before a restart. It answers False if another digest is on record. It answers False too if none is,
    and the attempt is not the newest.
    """

    client: str
    header: Header
    questions: tuple[Question, ...]
    act: Act
    digest: bytes


def entering(client: str, agreement: Agreement, signers: int) -> Begin:
    """The act of entering the attempt that this agreement is of."""
    return Begin(
        client=client,
        header=agreement.header,
        questions=agreement.questions,
        members=tuple(agreement.roster.numbers),
        signers=signers,
        once=frozenset(vector.name for vector in agreement.vectors if vector.once),
        context=agreement.context,
    )
