"""`securefl party serve` as a process: it is killed in mid-round, started again, and met by hostile bytes."""

from __future__ import annotations

import signal
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.party_folders import MASKED, Asking, build_once, enrolled
from support.started import Started

from securefl.core.errors import RemoteProtocolError
from securefl.deployment import folder as folders
from securefl.deployment.connection import send
from securefl.deployment.messages import REFUSED
from securefl.deployment.status import status

APART = "client-0001"


@contextmanager
def process(home: Path) -> Iterator[Started]:
    """`securefl party serve`, once it says that its socket is there."""
    serving = Started("-m", "securefl", "party", "serve", home)
    try:
        serving.until(f"{home.name} serves on")
        yield serving
    finally:
        serving.kill()


def test_a_party_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_once(monkeypatch)
    enrolled(tmp_path, MASKED)
    home = tmp_path / APART
    path = home / "run" / "party.sock"
    with ExitStack() as stack:
        here = {}
        for name in ("client-0000", "client-0002", "client-0003"):
            party = stack.enter_context(folders.opened(tmp_path / name))
            here[name] = party.session().answer
        waves: list[str] = []
        seen: list[bytes] = []
        dies: dict[int, Started] = {}

        def exchange(sent: Mapping[str, bytes]) -> dict[str, bytes]:
            said = {}
            for name, data in sent.items():
                waves.append(name)
                if name in here:
                    said[name] = here[name](data)
                    continue
                seen.append(data)
                try:
                    said[name] = send(path, data, timeout=60)
                except RemoteProtocolError:
                    continue
                if (victim := dies.pop(waves.count(APART), None)) is not None:
                    victim.kill()
            return said

        asking = Asking(tmp_path, exchange, MASKED)
        with process(home) as first:
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
            assert asking.enter() == ("client-0000", APART, "client-0002", "client-0003")
            assert asking.play(1) == [0, 1, 2, 3]
            hostile(path)
            # killed after its second wave of the round: keys were dealt, nothing is summed yet
            dies[waves.count(APART) + 2] = first
            assert asking.play(2) == [0, 2, 3]
        with process(home) as second:
            # it has left the session, and comes back for the next round
            assert send(path, seen[-1], timeout=30) == REFUSED
            assert asking.enter() == ("client-0000", APART, "client-0002", "client-0003")
            assert asking.play(3) == [0, 1, 2, 3]
            second.send_signal(signal.SIGTERM)
            assert second.wait(30) == 143
        assert not path.exists()
    said = status(home)
    why = " ".join(one["why"] for one in said["refusals"])
    assert "claim of 2147483648" in why
    assert "after a restart" in why
    assert said["sessions"]["count"] == 1


def hostile(path: Path) -> None:
    """Bytes that end their own connection, and nothing else."""
    for sent in (struct.pack("<Q", 2**31), struct.pack("<Q", 99) + b"cut"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
            connection.sendall(sent)
