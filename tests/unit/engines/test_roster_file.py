"""Rosters made out of band: what is pinned, and lines that nobody printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.residents import NAMES, identities

from securefl.core.agreement import Identity, Member
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.keys import PublicKey
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.engines.apart.roster import Pinned, fingerprint, line_of, parse, read

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


def test_any_other_key_gives_another_digest() -> None:
    other = {**KEYS, **identities("client-0002")}
    assert Pinned({n: own.member() for n, own in other.items()}).digest != parse("\n".join(LINES)).digest


def of(*members: Member) -> str:
    return "\n".join(map(line_of, members))


def changed(**fields: object) -> str:
    return "\n".join([*LINES[1:], json.dumps({**json.loads(LINES[0]), **fields})])


ONE, TWO, US, HOLDER = (KEYS[name].member() for name in ("client-0000", "client-0001", SERVER, KEY_HOLDER))
ZERO = PublicKey(bytes(32))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n".join([*LINES, LINES[0]]), "client-0000 twice"),
        ("\n".join([*LINES, line_of(Identity.generate("client-0000").member())]), "client-0000 twice"),
        (of(ONE, Member("client-0001", ONE.identity, TWO.channel), US), "for client-0000 and client-0001"),
        (of(ONE, Member("client-0001", TWO.identity, ONE.identity), US), "for client-0000 and client-0001"),
        (of(ONE, Member(SERVER, US.identity, US.identity)), "for server and server"),
        (of(ONE, US, Member(KEY_HOLDER, HOLDER.identity, US.channel)), "for server and key-holder"),
        (of(ONE, Member(SERVER, ZERO, US.channel)), "anybody signs"),
        (of(ONE, TWO), "of the server"),
        (of(US), "of the server"),
        (of(TWO, US), "without a gap"),
        ("", "nobody"),
        (changed(fingerprint="0000 " * 8), "line 6: expected the fingerprint"),
        (changed(channel=HOLDER.channel.raw.hex()), "line 6: expected the fingerprint"),
        (changed(name="client-0"), "line 6: expected a line"),
        (changed(name="client-0000\u202e"), "line 6: expected a line"),
        (changed(identity="ab"), "line 6: expected a line"),
        (changed(identity=7), "line 6: expected a line"),
        (changed(more="x"), "line 6: expected a line"),
        ("[" * 9999, "line 1: expected a line"),
        ("not json", "line 1: expected a line"),
    ],
)
def test_a_roster_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_a_fingerprint_is_over_name_and_keys() -> None:
    assert fingerprint(ONE) != fingerprint(Member("client-0009", ONE.identity, ONE.channel))
    assert len(fingerprint(ONE).split()) == 8
