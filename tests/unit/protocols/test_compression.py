"""Compressed updates: what is not sent stays, models move by changes, and a server's bytes are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_study import spied, study, world

from securefl.algorithm.clients import State
from securefl.core.errors import DataError
from securefl.core.sparse import sparse
from securefl.protocols import compression
from securefl.protocols.averaging import Averaging
from securefl.protocols.compression import Compressed, _answered, download, received
from securefl.protocols.cs_fl import CSFL
from securefl.protocols.stc import STC
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study
from securefl.training.task import Problem

OPTIONS = {
    "stc": "p = 0.05",
    "cs_fl": "sparsity = 0.01",
    "cs_fl signs": "sparsity = 0.01\nmeasurements = 0.3\nsigns = true",
}
LOSSES = "[network]\ndropout = 0.3\n"


def of(which: str, fraction: float = 0.5, **changes: Any) -> Study:
    arm = f'[[arm]]\nname = "x"\nprotocol = "{which.split()[0]}"\nfraction = {fraction}\n{OPTIONS[which]}\n'
    return study(arm, **{"clients": 6, "rounds": 5, **changes})


def kept(of: Study, folder: Path) -> Any:
    with Checkpoint(checkpoint_file(arm_folder(folder, of.arms[0], 3))) as checkpoint:
        return checkpoint.kept()


@pytest.mark.parametrize("which", OPTIONS)
@pytest.mark.parametrize("extra", ["", LOSSES], ids=["all answer", "some are lost"])
def test_each_client_has_a_model_that_the_server_had(
    which: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, though nobody gets more than changes. CS-FL's server moves twice a round."""
    own, moves, move = of(which, extra=extra), [], compression.moved

    def noted(*given: Any) -> State:
        moves.append(move(*given))
        return moves[-1]

    monkeypatch.setattr(compression, "moved", noted)
    spy, _ = spied(own, tmp_path)
    models = [state.broadcast.tobytes() for state in (spy.states[0], *moves[:-1])]
    states = kept(own, tmp_path)
    assert states
    for client in states.values():
        assert client["model"].tobytes() in models
    last = models[-1]
    answered = spy.asks[-1][1].survivors
    assert answered
    assert all(states[k]["model"].tobytes() == last for k in answered)
    assert all(len(query.broadcast) < len(spy.states[0].broadcast) for query, _ in spy.asks)


def test_a_zero_below_zero_moves_server_and_client_alike() -> None:
    own = CSFL(fraction=1.0, sparsity=0.01).build(problem())
    assert isinstance(own, Averaging)
    zeros = np.full(len(own.problem.initial), -0.0, np.float32)
    before = State(zeros, own.start().memory)
    after = compression.moved(before, zeros, np.zeros(len(zeros)))
    state = {"model": zeros, "version": np.zeros(1, np.int64)}
    model, _ = received(own.problem, download(after, (0,)), state)
    assert model.tobytes() == after.broadcast.tobytes()


# The way down ------------------------------------------------------------------------------------


def problem() -> Problem:
    return world(of("stc")).problem


def moved(rounds: int, p: float = 0.02) -> tuple[Averaging, list[State]]:
    """The server's states over rounds of random steps, in which client 0 never answers."""
    own = STC(fraction=1.0, p=p).build(problem())
    assert isinstance(own, Averaging)
    rng, states = np.random.default_rng(1), [own.start()]
    for _ in range(rounds):
        state = states[-1]
        has = np.append(0, np.full(5, state.memory["version"][0]))
        mean, residual = rng.normal(size=len(state.broadcast)), state.memory["residual"]
        assert isinstance(own.part, Compressed)
        change = own.part.phases[0].change(mean, residual)
        states.append(compression.moved(state.remember(has=has), *change))
    return own, states


@pytest.mark.parametrize("behind", [0, 1, 3, 6])
def test_a_client_takes_the_changes_that_it_lacks(behind: int) -> None:
    own, states = moved(6)
    sent = download(states[-1], range(6))
    assert len(sent) < len(states[-1].broadcast)
    at = 6 - behind
    state = {"model": states[at].broadcast, "version": np.array([at])}
    model, version = received(own.problem, sent, state if at else {})
    assert version == 6
    assert model.tobytes() == states[-1].broadcast.tobytes()


def test_a_cohort_that_lacks_little_is_sent_little() -> None:
    _, states = moved(6)
    one, all_of_them = (len(download(states[-1], cohort)) for cohort in ((1, 2), (0, 1, 2)))
    assert one < all_of_them / 3


def test_changes_longer_than_the_model_are_sent_as_the_model() -> None:
    own, states = moved(60, p=0.1)
    sent = download(states[-1], (0, 1))
    assert len(sent) == 3 + len(states[-1].broadcast)
    assert states[-1].memory["changes"].nbytes <= 4 * len(states[-1].broadcast)
    model, version = received(own.problem, sent, {})
    assert version == 60
    assert model.tobytes() == states[-1].broadcast.tobytes()


def test_a_client_that_lost_its_state_abstains_and_trains_no_other_model() -> None:
    own, states = moved(3)
    with pytest.raises(DataError, match="those from 2 to 3"):
        received(own.problem, download(states[-1], (1,)), {})


def test_a_client_that_lost_its_state_gets_all_changes_after_three_silent_rounds() -> None:
    own, states = moved(3)
    state = states[-1]
    for silent in range(3):
        assert state.memory["has"][1] == 2, silent
        state = _answered(state, (1, 2), (2,))
    model, version = received(own.problem, download(state, (1,)), {})
    assert version == 3
    assert model.tobytes() == state.broadcast.tobytes()
    state = _answered(state, (1,), (1,))
    assert state.memory["has"].tolist() == [0, 3, 3, 2, 2, 2]
    assert not state.memory["silent"].any()
    assert _answered(state, (1, 2), ()).memory["has"].tolist() == [0, 0, 0, 2, 2, 2]


def words(*parts: bytes) -> list[float]:
    data = b"".join(parts)
    data += bytes(-len(data) % 3)
    return [float(int.from_bytes(data[i : i + 3], "little")) for i in range(0, len(data), 3)]


def change(size: int, value: int) -> bytes:
    vector = np.zeros(size, np.int32)
    vector[3] = value
    return sparse(vector)


ONE = int(np.float32(1.0).view(np.int32))
NAN = int(np.float32(np.nan).view(np.int32))
D = 610


def length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little")


def test_a_change_by_hand() -> None:
    coded = change(D, -ONE)
    sent = np.array([0, 0, 1, *words(length(coded), coded)], np.float32)
    model, version = received(problem(), sent, {})
    expected = problem().initial.copy()
    expected[3] -= 1
    assert version == 1
    np.testing.assert_array_equal(model, expected)


GOOD = change(D, ONE)
MOST = change(D, int(np.float32(3e38).view(np.int32)))
"""Twice it, a value is infinite."""


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], "3 whole numbers"),
        ([0, 0], "3 whole numbers"),
        ([0, 0, np.nan], "3 whole numbers"),
        ([0, 0.5, 1], "3 whole numbers"),
        ([-1, 0, 1], "3 whole numbers"),
        ([2, 0, 0], "the changes since version 0"),
        ([0, 1, 2], "the changes since version 0"),
        ([0, 0, 1], "Expected 1 changes"),
        ([0, 0, 2**20], "changes"),
        ([0, 0, 1, np.nan], "whole numbers from 0 to 2\\^24"),
        ([0, 0, 1, -1.0], "whole numbers from 0 to 2\\^24"),
        ([0, 0, 1, 2**24], "whole numbers from 0 to 2\\^24"),
        ([0, 0, 1, *words(length(GOOD), GOOD, bytes(9))], "Expected 1 changes"),
        ([0, 0, 1, *words(b"\xff\xff\xff\xff", GOOD)], "Expected 1 changes"),
        ([0, 0, 1, *words(length(GOOD), bytes([GOOD[0] ^ 16]) + GOOD[1:])], "Expected"),
        ([0, 0, 1, *words(length(change(D, NAN)), change(D, NAN))], "finite values"),
        ([0, 0, 0, *[0.0] * (D + 1)], "at most 610 others"),
        ([1, 0, 1, *[0.0] * (D - 1)], "a model of 610 finite values"),
        ([1, 0, 1, *[0.0] * (D - 1), np.nan], "a model of 610 finite values"),
        ([1, 0, 1, *[0.0] * (D - 1), -np.inf], "a model of 610 finite values"),
        ([0, 0, 2, *words(length(MOST), length(MOST), MOST, MOST)], "leave a finite model"),
    ],
)
def test_a_broadcast_that_no_server_makes_is_refused(sent: list[float], said: str) -> None:
    with pytest.raises(DataError, match=said):
        received(problem(), np.array(sent, np.float32), {})
