"""Gathers the parties of a round: lets them enter the session, and waits until enough of them are present.

A round begins only if a sum can open over the clients that are present. Until then no order is sent, no
charge is reserved, and the round does not count. The server waits up to a deadline, and then stops with the
reason. Finished rounds are kept, and the next start goes on with the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final

from securefl.core.errors import SecureFLError
from securefl.core.logs import logger
from securefl.core.release import KEY_HOLDER
from securefl.core.text_safety import some
from securefl.deployment.transport import RemoteTransport
from securefl.engine.attendance import Absence
from securefl.study.interruption import Stop

_POLL: Final = 1.0
"""Seconds between two requests to enter."""
_log = logger(__name__)


class TooFewParties(SecureFLError):
    """Raised if a round could not begin in time, since too few of its parties are present.

    The round did not count, and nothing was charged. Finished rounds are kept.

    >>> from securefl.deployment import TooFewParties
    >>> from securefl.errors import SecureFLError
    >>> issubclass(TooFewParties, SecureFLError)
    True
    """


class RunLost(SecureFLError):
    """Raised if the run of Flower that plays a study did not start, or ended before the study's end.

    It is no party's fault. Finished rounds are kept, and a later call goes on.
    """


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How a server waits for parties.

    Attributes:
        seconds: how long it waits: for all parties at its start, and later only if too few are present.
        say: prints who is awaited.
        stop: asked meanwhile; it raises `Interrupted` if a request to stop came.
        clock, pause: read and wait for seconds; tests inject others. A step of the machine's time of day
            changes nothing.
    """

    seconds: float = 0.0
    say: Callable[[str], None] = lambda line: None
    stop: Stop | None = None
    clock: Callable[[], float] = monotonic
    pause: Callable[[float], None] = sleep


AT_ONCE: Final = Patience()
"""Waits for nobody: a round begins at once, or not."""


class Gathering:
    """The parties of one session, and which of them are in it.

    Args:
        transport: of the session, which lets parties enter.
        names: of the clients, and of the key holder if the session has one.

    Attributes:
        names: the same.
        absent: each other party, and what its answer to the newest request to enter showed.
    """

    def __init__(self, transport: RemoteTransport, names: Sequence[str], patience: Patience) -> None:
        self.names = frozenset(names)
        self._transport, self._names, self._patience = transport, names, patience
        self.absent: dict[str, Absence] = {}
        self.rejected_from: dict[str, str] = {}
        self._begun = False

    @property
    def here(self) -> frozenset[str]:
        """The parties in the session."""
        return frozenset(name for name in self._names if name in self._transport)

    def ask(self) -> None:
        """Ask the parties that are not in the session to enter, once."""
        out = [name for name in self._names if name not in self.here]
        self.absent, self.rejected_from = {}, {}
        if not out:
            return
        self.rejected_from = self._transport.enter(out)
        self.absent = {
            name: Absence.REFUSED if name in self.rejected_from else Absence.SILENT
            for name in out
            if name not in self.here
        }

    def gather(self, number: int, fewest: int, resting: Collection[str]) -> None:
        """Wait until round `number` can begin.

        fewest: the number of clients that it needs. resting: clients that are asked no more, such as those
        over budget.
        Raises TooFewParties after the deadline.
        """
        patience = self._patience
        end, told = patience.clock() + patience.seconds, ""
        # All are asked again: a party that answered in the last round may have died since, and a round
        # without it might open no sum. For a party in the session the request changes nothing.
        self._transport.leave(self._names)
        if not self._begun:
            patience.say(f"Asking {some(sorted(self.names))} to enter.")
        while True:
            self.ask()
            lacking = self._lacking(fewest, resting)
            # At the start all parties are awaited. A party that refuses needs its owner, so it is not.
            late = [name for name, why in self.absent.items() if why is Absence.SILENT]
            coming = not self._begun and bool(set(late) - set(resting))
            if not lacking and not (coming and patience.clock() < end):
                self._begun = True
                return
            left = end - patience.clock()
            if left <= 0:
                raise TooFewParties(self._sentence(number, lacking))
            if patience.stop is not None:
                patience.stop.check()
            line = f"Round {number} waits for {self._absentees(set(self.absent) - set(resting))}."
            if line != told:
                told = line
                _log.info("%s", line)
                patience.say(line[:-1] + f", up to {left:.0f} s.")
            patience.pause(min(_POLL, left))

    def _lacking(self, fewest: int, resting: Collection[str]) -> str:
        """What a round lacks, in words; empty if it can begin."""
        clients = [name for name in self._names if name != KEY_HOLDER and name not in resting]
        present = [name for name in clients if name in self.here]
        parts = []
        if KEY_HOLDER in self._names and KEY_HOLDER not in self.here:
            parts.append("the key holder")
        if len(present) < fewest:
            parts.append(f"{fewest} clients, of which {len(present)} are present")
        return " and ".join(parts)

    def _absentees(self, which: Collection[str]) -> str:
        return some([f"{name} ({self.absent[name].value})" for name in sorted(which)])

    def _sentence(self, number: int, lacking: str) -> str:
        return (
            f"Expected {lacking} for round {number} within {self._patience.seconds:g} s. Absent: "
            f"{self._absentees(self.absent)}. The round did not count, and nothing was charged. Start the "
            "silent parties. A party that refuses has another plan or roster, or keys of before a rotation, "
            "or no session without noise left; its owner reads which in `securefl party status`. Then go on."
        )
