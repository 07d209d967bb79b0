"""The process of a deployed party: a client or key holder that answers requests on its socket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from securefl.algorithm.queries import ClientState
from securefl.core.release import KEY_HOLDER
from securefl.deployment.connection import MOST, Connection
from securefl.deployment.folder import Opened
from securefl.deployment.party import PartySession
from securefl.deployment.server import listening
from securefl.deployment.server import serve as serve_line
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.storage.own_record import OwnRecord


def resident_of(party: Opened) -> PartySession:
    """The long-running party of an opened folder, a client or the key holder, for all its sessions."""

    def make(kept: Mapping[int, ClientState]) -> ClientParty | KeyHolderParty:
        number, files = party.content.client, party.files
        if number is None or party.data is None or files.ledger is None:
            return party.made.key_holder(OwnRecord(KEY_HOLDER, files.journal, party.identity))
        return party.made.client(number, party.data, files.ledger, files.journal, party.identity, kept)

    return PartySession(
        party.content.name,
        party.made.plan,
        party.made.work,
        party.pinned,
        party.files.diary,
        make,
        newest=party.files.newest,
    )


def answering(party: Opened, resident: PartySession) -> Callable[[bytes], bytes]:
    """The function that answers a request. It updates the party's counter before the reply is sent."""

    def answer(request: bytes) -> bytes:
        reply = resident.answer(request)
        party.files.note()
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
    """Answer requests on a Unix socket until the process receives a signal to stop.

    Args:
        party: the opened folder of a client or the key holder.
        socket: the path of the socket, which is made here.
        allow: the ids of the users that may connect.
        ready: called once the socket accepts connections.
        most: the longest request, in bytes.

    Raises:
        ConfigError: if the socket cannot be made at this path.
    """
    answer = answering(party, resident_of(party))

    def handle(line: Connection, request: bytes) -> bytes:
        return answer(request)

    with listening(socket) as listener:
        ready()
        serve_line(listener, handle, allow=allow, tell=party.files.diary.refuse, most=most)
