"""One party of this app: its keys, its ledger and its process, under a user of its own.

    python party.py enrol FOLDER NAME     make its keys, and print its line for the roster
    python party.py serve FOLDER NAME [USER]
        serve it on FOLDER/run/party.sock to this user, or to its own, by the roster in FOLDER/roster.jsonl

The line goes to the others out of band, and so does the roster: compare fingerprints before you serve.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
from pathlib import Path

from securefl.deployment import UpdateParty, keys, roster
from securefl.deployment.server import served
from securefl.flower import AppTerms

TERMS = Path(__file__).with_name("securefl.toml")

SESSIONS = 1
"""How many sessions without noise this party's owner agrees to: a server could compare the sums of two."""


def enrol(folder: Path, name: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o710)  # its group passes through to the socket, and reads nothing
    return roster.line_of(keys.make(folder, name).member())


def serve(folder: Path, name: str, user: int) -> None:
    terms = AppTerms.read(TERMS)
    pinned = roster.read(folder / "roster.jsonl")
    identity = keys.read(folder, name)
    # Beside the folder, so that a backup of the folder does not bring it back too.
    counter = folder.with_name(f"{folder.name}.counter")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    path = folder / "run" / "party.sock"
    served(
        lambda: UpdateParty(
            name, terms.plan, terms.updates, pinned, identity, folder, counter, sessions=SESSIONS
        ),
        path,
        allow={user},
        ready=lambda listener: print(f"{name} serves on {path}.", flush=True),
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["enrol", folder, name]:
            print(enrol(Path(folder), name))
        case ["serve", folder, name]:
            serve(Path(folder), name, os.getuid())
        case ["serve", folder, name, user]:
            serve(Path(folder), name, pwd.getpwnam(user).pw_uid)
        case _:
            sys.exit(__doc__)
