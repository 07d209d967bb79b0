"""A party's status agrees with the statements of its ledger, which it reads once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.coordinated import federation
from support.party_folders import enrolled
from support.private_studies import client_level

from securefl.accounting import statements
from securefl.accounting.statements import statement
from securefl.core.release import PARTIES
from securefl.deployment.session_store import LEDGER
from securefl.deployment.status import status

NOISED = client_level(rounds=2, noise='"local"').text.replace("clients = 6", "clients = 3")


def test_the_status_has_the_last_epsilon_of_each_statement_from_one_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(tmp_path, NOISED)
    before = status(tmp_path / "client-0000")
    assert (set(before["epsilon"].values()), before["releases"]) == ({0.0}, {"committed": 0, "reserved": 0})
    with federation(tmp_path, NOISED) as own:
        own.coordinate(tmp_path / "run")
    read, count = statements.read, []
    monkeypatch.setattr(statements, "read", lambda *of: (count.append(of), read(*of))[1])
    told = status(tmp_path / "client-0000")
    assert len(count) == 1
    path = tmp_path / "client-0000" / LEDGER
    wanted = {party: statement(path, party=party, holder="client-0000").releases for party in PARTIES}
    assert told["epsilon"] == {party: rows[-1]["epsilon"] for party, rows in wanted.items()}
    assert 0 < told["epsilon"]["server"] <= 8
    assert told["releases"] == {"committed": 2, "reserved": 0}
