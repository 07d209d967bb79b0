"""A directory pins parties: two of them never share a key."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.every import every

from securefl.core.agreement import Directory, Identity, Roster
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.release import KEY_HOLDER, SERVER

SERVER_OWN, HOLDER = Identity.generate(SERVER).member(), Identity.generate(KEY_HOLDER).member()


def directory(**changes: object) -> Directory:
    good = Directory(bytes(32), SERVER_OWN, HOLDER, lambda names: [])
    return replace(good, **changes)  # type: ignore[arg-type]


@every("same", ["identity", "channel"])
def test_a_server_that_is_its_own_key_holder_is_refused(same: str) -> None:
    """It could open what is hidden from it."""
    assert directory(key_holder=None).key_holder is None
    with pytest.raises(ConfigError, match="one key twice"):
        directory(key_holder=replace(HOLDER, **{same: getattr(SERVER_OWN, same)}))


def test_a_session_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="32 bytes, got 31"):
        directory(session=bytes(31))


def test_members_whose_names_differ_by_case_alone_are_refused() -> None:
    members = tuple(Identity.generate(name).member() for name in ("Ann", "ann"))
    with pytest.raises(ConfigError, match=r"got 'Ann' and 'ann'"):
        Roster(members)


def test_the_roster_of_a_cohort_is_made_once() -> None:
    """By its names, whatever their order. A cohort that was refused is asked for again."""
    pinned = {name: Identity.generate(name).member() for name in ("client-0000", "client-0001")}
    found = directory(members=lambda names: [pinned[name] for name in names])
    both = found.roster(["client-0001", "client-0000"])
    assert found.roster(name for name in pinned) is both
    assert found.roster(["client-0001"]).members == (pinned["client-0001"],)
    with pytest.raises(CryptoError, match="keys are pinned"):
        found.roster([*pinned, "client-0002"])
    pinned["client-0002"] = Identity.generate("client-0002").member()
    assert len(found.roster(pinned).members) == 3
    assert replace(found, session=bytes([1] * 32)).roster(pinned) is not found.roster(pinned)


def test_the_rosters_of_the_newest_cohorts_are_kept() -> None:
    names = [f"client-{number:04d}" for number in range(20)]
    pinned = {name: Identity.generate(name).member() for name in names}
    found = directory(members=lambda names: [pinned[name] for name in names])
    first = found.roster(names[:1])
    assert found.roster(names[:1]) is first
    for name in names[1:]:
        found.roster([name])
    assert found.roster(names[:1]) is not first


def test_a_key_counts_for_its_purpose_and_session_if_its_owner_signed_it() -> None:
    own, other = (Identity.generate("key-holder") for _ in range(2))
    said = own.vouch(b"sums", bytes(32), b"a public key")
    found = directory(key_holder=own.member())
    assert found.vouched(b"sums", said) == b"a public key"
    for purpose, session, signer, key in (
        (b"scores", bytes(32), own, said),
        (b"sums", bytes(31) + b"s", own, said),
        (b"sums", bytes(32), other, said),
        (b"sums", bytes(32), own, b"b" + said[1:]),
    ):
        with pytest.raises(CryptoError):
            directory(session=session, key_holder=signer.member()).vouched(purpose, key)
