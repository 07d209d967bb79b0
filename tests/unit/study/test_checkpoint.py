"""A round is in a checkpoint whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.tiny_study import same_state

from securefl.algorithm.clients import State
from securefl.core.errors import ConfigError, DataError, LocalProtocolError
from securefl.study.checkpoint import Checkpoint


def state(seed: int) -> State:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=5)
    numbers[:2] = np.nan, -np.inf
    memory = {
        "numbers": numbers,
        "whole": rng.integers(9, size=(2, 3)),
        "single": np.array([np.float32(1.5)]),
        "none": np.zeros(0),
        "negative zero": np.array([-0.0]),
    }
    return State(rng.normal(size=7).astype(np.float32), memory)


def test_states_come_back_bit_for_bit_and_rounds_in_order(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    for number in range(1, 12):
        with Checkpoint(path) as checkpoint:
            checkpoint.save(number, state(number), {"round": number, "epsilon": float("inf")})
    with Checkpoint(path) as checkpoint:
        stored, records = checkpoint.load()
    assert stored is not None
    assert same_state(stored, state(11))
    assert records == [{"round": n, "epsilon": float("inf")} for n in range(1, 12)]


def test_a_round_is_finished_once(tmp_path: Path) -> None:
    """Two processes in one folder: the slower one is told, and overwrites nothing."""
    path = tmp_path / "c.sqlite"
    with Checkpoint(path) as fast, Checkpoint(path) as slow:
        fast.save(1, state(1), {"by": "fast"})
        with pytest.raises(LocalProtocolError, match="another process"):
            slow.save(1, state(2), {"by": "slow"})
        fast.save(2, state(3), {"by": "fast"})
        stored, records = slow.load()
    assert stored is not None
    assert same_state(stored, state(3))
    assert [record["by"] for record in records] == ["fast", "fast"]


def test_what_cannot_be_stored_leaves_the_old_round(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    with Checkpoint(path) as checkpoint:
        checkpoint.save(1, state(1), {})
        with pytest.raises(TypeError):
            checkpoint.save(2, state(2), {"array": np.zeros(2)})
    with Checkpoint(path) as checkpoint:
        stored, records = checkpoint.load()
        checkpoint.save(2, state(2), {})
    assert stored is not None
    assert same_state(stored, state(1))
    assert len(records) == 1


def test_pickled_arrays_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write the file can seal a pickle too."""
    pickled = io.BytesIO()
    np.savez(pickled, broadcast=np.array([object()]))
    with Checkpoint(tmp_path / "c.sqlite") as checkpoint:
        monkeypatch.setattr("securefl.study.checkpoint.packed", lambda arrays: pickled.getvalue())
        checkpoint.save(1, state(1), {})
        with pytest.raises(DataError, match=r"damaged.*SafetensorError"):
            checkpoint.load()


def test_objects_are_not_written(tmp_path: Path) -> None:
    with Checkpoint(tmp_path / "c.sqlite") as checkpoint:
        with pytest.raises(ConfigError, match=r"'memory.bad', got object"):
            checkpoint.save(1, State(np.zeros(1, np.float32), {"bad": np.array([object()])}), {})
        assert checkpoint.load() == (None, [])


@every("content", [b"not a database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_damaged_file_is_told_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint.sqlite"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"\.sqlite is damaged"):
        Checkpoint(path)
