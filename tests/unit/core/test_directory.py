"""A directory pins parties: two of them never share a key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from securefl.core.agreement import Directory, Identity, Roster
from securefl.core.errors import ConfigError
from securefl.core.release import KEY_HOLDER, SERVER

SERVER_OWN, HOLDER = Identity.generate(SERVER).member(), Identity.generate(KEY_HOLDER).member()


def directory(**changes: object) -> Directory:
    good = Directory(bytes(32), SERVER_OWN, HOLDER, lambda names: [])
    return replace(good, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("same", ["identity", "channel"])
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
