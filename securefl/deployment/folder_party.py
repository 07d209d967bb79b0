"""The process of a deployed party: a client or key holder that answers requests on its socket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from securefl.algorithm.queries import ClientState
from securefl.core.errors import ConfigError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment import plan_file
from securefl.deployment.folder import Opened, opened
from securefl.deployment.framing import MOST
from securefl.deployment.party import PartySession
from securefl.deployment.server import PartyThread, Served, listening
from securefl.deployment.server import serve as serve_line
from securefl.deployment.session_cap import SessionCap, by_command
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.storage.own_record import OwnRecord
from securefl.training import single_thread


def resident_of(party: Opened) -> PartySession:
    """The long-running party of an opened folder, a client or the key holder, for all its sessions."""
    made, identity, files = party.made, party.identity, party.files
    allowed = party.content.sessions
    bare = made.bare and party.content.client is not None
    cap = SessionCap(files.diary, allowed, by_command(party.folder, allowed), bare)

    def make(session: bytes, kept: Mapping[int, ClientState]) -> ClientParty | KeyHolderParty:
        if (number := party.content.client) is None or party.data is None or files.ledger is None:
            return made.key_holder(OwnRecord(KEY_HOLDER, files.journal, identity))
        return made.client(
            number, party.data, files.ledger, files.journal, identity, session, kept, cap.count
        )

    return PartySession(
        party.content.name,
        made.plan,
        made.work,
        party.pinned,
        files.diary,
        make,
        newest=files.newest,
        barred=cap.refusal,
    )


def answering(party: Opened, resident: PartySession) -> Callable[[bytes], bytes]:
    """The function that answers a request. It updates the party's counter before the reply is sent."""

    def answer(request: bytes) -> bytes:
        reply = resident.answer(request)
        party.files.note()
        return reply

    return answer


@contextmanager
def opening(folder: Path, *, new_records: str = "", trusted: Sequence[Path] = ()) -> Iterator[Served]:
    """Open the party of a folder for a `PartyThread`. Raises as `folder.opened`."""
    # In the party's thread: torch counts threads for each of them.
    single_thread()
    with opened(folder, new_records=new_records, trusted=trusted) as party:
        resident = resident_of(party)
        answer = answering(party, resident)
        yield Served(lambda relay, request: answer(request), party.files.diary.refuse, resident.prepare)


def serve(
    folder: Path,
    socket: Path,
    *,
    allow: Collection[int],
    ready: Callable[[str], None],
    most: int = MOST,
    new_records: str = "",
    trusted: Sequence[Path] = (),
) -> None:
    """Answer requests on a Unix socket until the process receives a signal to stop.

    A request that has begun goes on to its end first.

    Args:
        folder: of a client or the key holder.
        socket: the path of the socket, which is made here.
        allow: the ids of the users that may connect.
        ready: called with the party's name once the socket accepts connections.
        most: the longest request, in bytes.
        new_records: the owner's reason why the records differ from before; empty if they are the same.
        trusted: the paths of --trust-code.

    Raises:
        ConfigError: if the folder is the server's or cannot be opened, or if the socket cannot be made.
        DataError: as `folder.opened`.
    """
    name = plan_file.read(folder).name
    if name == SERVER:
        raise ConfigError(
            "Expected a client or a key holder, got the server's folder: a server does not serve."
        )
    with (
        PartyThread(lambda: opening(folder, new_records=new_records, trusted=trusted)) as thread,
        listening(socket) as listener,
    ):
        ready(name)
        serve_line(listener, thread, allow=allow, most=most)
