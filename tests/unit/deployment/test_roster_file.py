"""Rosters made out of band: what is pinned, and lines that nobody printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.every import every
from support.residents import NAMES, identities

from securefl.core.agreement import Identity, Member
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.keys import PublicKey
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.roster import PinnedRoster, fingerprint, line_of, parse, read

KEYS = identities()
LINES = [line_of(own.member()) for own in KEYS.values()]


def test_lines_come_back_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "roster.jsonl").write_text("\n\n".join(reversed(LINES)) + "\n")
    found = read(tmp_path / "roster.jsonl")
    assert found.members == {name: own.member() for name, own in KEYS.items()}
    assert found.clients == NAMES
    assert found.digest == parse("\n".join(LINES)).digest
    assert found.directory(bytes(32)).roster(NAMES[:2]).names((0, 1)) == NAMES[:2]
    with pytest.raises(CryptoError, match="pinned"):
        found.directory(bytes(32)).roster(["client-0009"])


def of(*members: Member) -> str:
    return "\n".join(map(line_of, members))


def changed(**fields: object) -> str:
    return "\n".join([*LINES[1:], json.dumps({**json.loads(LINES[0]), **fields})])


ONE, TWO, US, HOLDER = (KEYS[name].member() for name in ("client-0000", "client-0001", SERVER, KEY_HOLDER))
ZERO = PublicKey(bytes(32))


CASES = {
    "one line twice": ("\n".join([*LINES, LINES[0]]), "client-0000 twice"),
    "one name twice": (
        "\n".join([*LINES, line_of(Identity.generate("client-0000").member())]),
        "client-0000 twice",
    ),
    "one key of two clients": (
        of(ONE, Member("client-0001", ONE.identity, TWO.channel), US),
        "for client-0000 and client-0001",
    ),
    "a client's channel is another's identity": (
        of(ONE, Member("client-0001", TWO.identity, ONE.identity), US),
        "for client-0000 and client-0001",
    ),
    "one key for both uses": (of(ONE, Member(SERVER, US.identity, US.identity)), "for server and server"),
    "one channel of two": (
        of(ONE, US, Member(KEY_HOLDER, HOLDER.identity, US.channel)),
        "for server and key-holder",
    ),
    "a key of zeros": (of(ONE, Member(SERVER, ZERO, US.channel)), "anybody signs"),
    "no server": (of(ONE, TWO), "of the server"),
    "no client": (of(US), "of the server"),
    "a gap": (of(TWO, US), "without a gap"),
    "nothing": ("", "nobody"),
    "another fingerprint": (changed(fingerprint="0000 " * 8), "line 6: expected the fingerprint"),
    "another channel": (changed(channel=HOLDER.channel.raw.hex()), "line 6: expected the fingerprint"),
    "a number too short": (changed(name="client-0"), "line 6: expected a line"),
    "a name that turns text": (changed(name="client-0000\u202e"), "line 6: expected a line"),
    "a key too short": (changed(identity="ab"), "line 6: expected a line"),
    "a key that is none": (changed(identity=7), "line 6: expected a line"),
    "one field more": (changed(more="x"), "line 6: expected a line"),
    "brackets": ("[" * 9999, "line 1: expected a line"),
    "no JSON": ("not json", "line 1: expected a line"),
}


@every("case", CASES)  # their texts hold keys, and tests need names that last
def test_a_roster_that_is_none_is_refused(case: str) -> None:
    text, said = CASES[case]
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_a_fingerprint_is_over_name_and_keys() -> None:
    assert fingerprint(ONE) != fingerprint(Member("client-0009", ONE.identity, ONE.channel))
    assert len(fingerprint(ONE).split()) == 8


@every("key", ["identity", "channel"])
def test_each_key_of_each_party_is_in_the_digest(key: str) -> None:
    """A roster with another channel key would have a stranger read what is sealed for that party."""
    members = {name: own.member() for name, own in KEYS.items()}
    for name, member in members.items():
        changed = replace(member, **{key: getattr(Identity.generate(name).member(), key)})
        assert PinnedRoster({**members, name: changed}).digest != PinnedRoster(members).digest
