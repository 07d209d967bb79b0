"""The roster of a deployment: its parties and their lasting public keys, in a file agreed on out of band.

A line is one party, as `securefl party enrol` prints it: JSON with the format's version, its name, its two
public keys in hex and their fingerprint, for people to compare. The order of lines does not matter. No party
takes a roster from the server, because a server that could name a client's key could impersonate it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefl.algorithm.plan import Plan
from securefl.core.agreement import Directory, Member, fields
from securefl.core.errors import ConfigError
from securefl.core.formats import VERSION, prefix, require_version
from securefl.core.keys import PublicKey
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import has_small_order
from securefl.core.text_safety import escaped, excerpt, require_distinct
from securefl.storage.texts import read_text

LARGEST = 2**22
"""Largest roster in bytes: some 15,000 parties."""
_KEYS = {"name", "identity", "channel", "fingerprint"}
_HEX = re.compile(r"[0-9a-f]{64}")


def fingerprint(member: Member) -> str:
    """128 bits of SHA-256 over name and keys, in groups of four digits, for people to read aloud."""
    raw = fields(member.name.encode(), member.identity.raw, member.channel.raw)
    digits = hashlib.sha256(prefix("enrolment") + raw).hexdigest()[:32]
    return " ".join(digits[at : at + 4] for at in range(0, 32, 4))


def line_of(member: Member) -> str:
    """A party's line of a roster, without the line's end."""
    return json.dumps(
        {
            "version": VERSION,
            "name": member.name,
            "identity": member.identity.raw.hex(),
            "channel": member.channel.raw.hex(),
            "fingerprint": fingerprint(member),
        }
    )


@dataclass(frozen=True)
class PinnedRoster:
    """The roster: the parties of a deployment by name, with their public keys.

        >>> from securefl.deployment import PinnedRoster
        >>> from securefl.sums import Identity
        >>> names = ("client-0000", "client-0001", "server")
        >>> roster = PinnedRoster({name: Identity.generate(name).member() for name in names})
        >>> roster.clients, len(roster.digest)
        (('client-0000', 'client-0001'), 32)

    Raises:
        ConfigError: there is no server or no client, a name is no party's, or a key stands twice.
    """

    members: Mapping[str, Member]

    def __post_init__(self) -> None:
        clients = self.clients
        numbered = [client_name(k) for k in range(len(clients))]
        if SERVER not in self.members or not clients or list(clients) != numbered:
            raise ConfigError(
                f"Expected a roster of the server, clients numbered from {client_name(0)} without a gap, and "
                f"perhaps a {KEY_HOLDER}, got {', '.join(sorted(self.members)) or 'nobody'}. Ask the missing "
                "parties for their lines."
            )
        require_distinct(self.members, "names of parties")
        seen: dict[bytes, str] = {}
        for name, member in self.members.items():
            for key in (member.identity.raw, member.channel.raw):
                if (owner := seen.setdefault(key, name)) != name or member.identity == member.channel:
                    raise ConfigError(
                        f"Expected keys of its own for every party, got one key for {owner} and {name}: one "
                        "party would count as two. Ask both for their lines again."
                    )
            if has_small_order(member.identity):
                raise ConfigError(f"Expected a signing key of {name}, got one under which anybody signs.")

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients, ascending."""
        # Sorted by number: from 10,000 clients on, names have different lengths.
        apart = set(self.members) - {SERVER, KEY_HOLDER}
        return tuple(sorted(apart, key=lambda name: (len(name), name)))

    @property
    def digest(self) -> bytes:
        """SHA-256 over names and keys in the order of names, 32 bytes. A party's plan file has it."""
        own = [self.members[name] for name in sorted(self.members)]
        lines = [fields(one.name.encode(), one.identity.raw, one.channel.raw) for one in own]
        return hashlib.sha256(prefix("roster") + fields(*lines)).digest()

    def session(self, plan: Plan, nonce: bytes) -> bytes:
        """The session of this plan, these parties and this nonce, 32 bytes."""
        # Over names and keys, so that a rotation of keys gives another session.
        return plan.session(self.clients, self.digest + nonce)

    def directory(self, session: bytes) -> Directory:
        """The public keys of a session."""
        return Directory(
            session,
            self.members[SERVER],
            self.members.get(KEY_HOLDER),
            lambda names: [self.members[name] for name in names],
        )


def read(path: Path) -> PinnedRoster:
    """Read a roster file. Raises ConfigError, with the line's number, if it is not valid."""
    return parse(read_text(path, LARGEST), str(path))


def parse(text: str, where: str = "roster") -> PinnedRoster:
    """Parse a roster's text (see `read`). where: its name in errors."""
    members: dict[str, Member] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        member = _member(line, f"{where}, line {number}")
        if member.name in members:
            raise ConfigError(
                f"{where}, line {number}: expected each party once, got {member.name} twice. After a "
                "rotation the old line is void. Remove it."
            )
        members[member.name] = member
    return PinnedRoster(members)


def _member(line: str, where: str) -> Member:
    try:
        said: Any = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict) and "fingerprint" in said:
        anew = "ask the party for its line again"
        require_version(said.pop("version", None), f"{where}: a line of securefl party enrol", anew)
    if not isinstance(said, dict) or set(said) != _KEYS or not _fit(said):
        raise ConfigError(
            f"{where}: expected a line as `securefl party enrol` prints it, with {', '.join(sorted(_KEYS))}, "
            f"got {excerpt(line)}. Ask its party for it again."
        )
    keys = [PublicKey(bytes.fromhex(said[name])) for name in ("identity", "channel")]
    member = Member(said["name"], keys[0], keys[1])
    if said["fingerprint"] != fingerprint(member):
        raise ConfigError(
            f"{where}: expected the fingerprint {fingerprint(member)} of these keys, got "
            f"{excerpt(said['fingerprint'])}: the line "
            "was changed, or is cut. Ask its party for it again."
        )
    return member


def _fit(said: Mapping[str, Any]) -> bool:
    texts = all(isinstance(value, str) for value in said.values())
    if not texts or not all(_HEX.fullmatch(said[name]) for name in ("identity", "channel")):
        return False
    return said["name"] in (SERVER, KEY_HOLDER) or bool(re.fullmatch(r"client-[0-9]{4,9}", said["name"]))


def differences(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> Sequence[str]:
    """One sentence for each field in which two plans differ, in alphabetical order."""
    return [
        f"{escaped(name)[:80]}: {_shown(own, name)} here, {_shown(theirs, name)} at the server"
        for name in sorted({*own, *theirs})
        if name not in own or name not in theirs or own[name] != theirs[name]
    ]


def _shown(table: Mapping[str, Any], name: str) -> str:
    return json.dumps(table[name])[:200] if name in table else "nothing"
