"""A party's process: its resident behind its socket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from securefl.core.release import KEY_HOLDER
from securefl.engines.apart.line import MOST, Line
from securefl.engines.apart.resident import Resident
from securefl.engines.apart.serving import listening
from securefl.engines.apart.serving import serve as serve_line
from securefl.engines.party.clients import ClientParty
from securefl.engines.party.key_holder import KeyHolderParty
from securefl.rounds import Kept
from securefl.storage.own_record import OwnRecord
from securefl.study.parties.folder import Opened


def resident_of(party: Opened) -> Resident:
    """The party over all its sessions, from what its process has opened: a client, or the key holder."""

    def make(kept: Mapping[int, Kept]) -> ClientParty | KeyHolderParty:
        number = party.content.client
        if number is None or party.data is None or party.ledger is None:
            return party.made.key_holder(OwnRecord(KEY_HOLDER, party.journal, party.identity))
        return party.made.client(number, party.data, party.ledger, party.journal, party.identity, kept)

    return Resident(
        party.content.name,
        party.made.plan,
        party.made.work,
        party.pinned,
        party.diary,
        make,
        newest=party.newest,
    )


def answering(party: Opened, resident: Resident) -> Callable[[bytes], bytes]:
    """The party's answers. How far it got is in its counter before a reply leaves."""

    def answer(request: bytes) -> bytes:
        reply = resident.answer(request)
        # Of the session that the diary has last: one that could not be begun is not the resident's.
        if entered := party.diary.sessions():
            # Whoever has the reply could otherwise have this party forget, by a backup, that it was here.
            party.counter.note(len(entered), party.newest(entered[-1][0]))
        return reply

    return answer


def serve(
    party: Opened,
    socket: Path,
    *,
    allow: Collection[int],
    ready: Callable[[], None],
    most: int = MOST,
) -> None:
    """Serve until the process is told to stop. ready: called once the socket is there."""
    answer = answering(party, resident_of(party))

    def handle(line: Line, request: bytes) -> bytes:
        return answer(request)

    with listening(socket) as listener:
        ready()
        serve_line(listener, handle, allow=allow, tell=party.diary.refuse, most=most)
