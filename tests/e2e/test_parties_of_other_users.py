"""Parties and their relay as processes of separate users: each has its own files, and the relay has none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from support.grid_double import GridDouble
from support.other_users import processes, relay_as, serve_as
from support.party_folders import MASKED, Asking, enrolled
from support.relay_nodes import node_as

from securefl.deployment.status import status
from securefl.flower.exchange import GridExchange

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can run processes of other users")
PARTIES = {f"client-{k:04d}": 54320 + k for k in range(4)}
GROUPS = list(PARTIES.values())
RELAY, STRANGER = 54330, 54331
"""Numbers that no user of this machine has. A party's group has the number of its user."""
FILES = ("identity.key", "ledger.sqlite")


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that every user can pass, with the folders of all parties, each of its own user."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
    folder.chmod(0o711)
    enrolled(folder, MASKED)
    for name, user in PARTIES.items():
        for home in (folder / name, folder / "counters" / name):
            for one in (home, *home.rglob("*")):
                os.chown(one, user, user)
    yield folder
    shutil.rmtree(folder)


def asked(process: Connection, what: Any, data: bytes | None) -> Any:
    process.send((what, data))
    return process.recv()


def test_rounds_over_parties_and_a_relay_of_separate_users(root: Path) -> None:
    sockets = {name: root / name / "run" / "party.sock" for name in PARTIES}
    path = sockets["client-0001"]
    users = [(RELAY, GROUPS), (STRANGER, GROUPS), (STRANGER, []), (GROUPS[1], []), (GROUPS[2], [])]
    serving = [(serve_as, (user, root / name, RELAY)) for name, user in PARTIES.items()]
    with processes(MASKED, *serving, *((relay_as, one) for one in users)) as pipes:
        parties, (relay, stranger, outsider, own, other) = pipes[:4], pipes[4:]
        assert [party.recv() for party in parties] == list(PARTIES)

        def exchange(sent: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
            said = {name: asked(relay, sockets[name], data) for name, data in sent.items()}
            return {name: reply for name, reply in said.items() if isinstance(reply, bytes)}

        asking = Asking(root, exchange, MASKED)
        assert asking.enter() == tuple(PARTIES)
        assert asking.play(1) == [0, 1, 2, 3]
        # The file's group keeps a stranger out. If the stranger is in it, the kernel's word does. So it does
        # with the party's own user, which --allow does not name.
        assert "which it may not" in asked(outsider, path, b"anything")
        for one in (stranger, own):
            assert "Expected a" in asked(one, path, b"anything")
        assert asking.play(2) == [0, 1, 2, 3]
        files = [root / "client-0001" / name for name in FILES]
        assert asked(own, files, None) == [True] * 2
        assert asked(relay, files, None) == asked(other, files, None) == [False] * 2
    refusals = [one["why"] for one in status(root / "client-0001")["refusals"]]
    for user in (STRANGER, GROUPS[1]):
        assert any(f"Refused user {user}, which is not among [{RELAY}]" in why for why in refusals)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_flower_federation_whose_relays_are_another_user(pinned: bool, root: Path) -> None:
    """A SuperNode runs what the SuperLink ships, so it is not the user who serves the party."""
    serving = [(serve_as, (user, root / name, RELAY)) for name, user in PARTIES.items()]
    with processes(MASKED, *serving, (node_as, (RELAY, GROUPS))) as pipes:
        *parties, relay = pipes
        assert [party.recv() for party in parties] == list(PARTIES)

        def node(name: str, message: Message) -> Message:
            config = {"securefl-party": name, "securefl-socket": str(root / name / "run" / "party.sock")}
            user = {"securefl-user": str(PARTIES[name])} if pinned else {}
            relay.send((message, config | user))
            reply: Message = relay.recv()
            return reply

        grid = GridDouble({10 + k: partial(node, name) for k, name in enumerate(PARTIES)})
        exchange = GridExchange(grid, deadline=60.0, clock=grid.clock, pause=grid.pause)
        asking = Asking(root, exchange, MASKED)
        if not pinned:
            assert asking.enter() == (), "a relay that was told no user takes its own alone"
            return
        assert asking.enter() == tuple(PARTIES)
        assert [asking.play(1), asking.play(2)] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    for name in PARTIES:
        assert not status(root / name)["refusals"]
