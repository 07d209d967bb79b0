"""Targets in a party's own file: scaled as the study's own are, and labels that the study knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.own_study import written
from support.private_studies import DPSGD

from securefl.algorithm.clients import ClientContext
from securefl.core.errors import DataError
from securefl.deployment.party_setup import PartyStudy, data_of
from securefl.study.config import Brought, parse
from securefl.training.jobs import usable

UNIT = np.random.default_rng(0).random((40, 3)).astype(np.float32)
LABELS = (UNIT[:, :2] > 0.5).astype(np.int64)
PRICES = 'classes = 0\ntarget = ["price", "size"]\ncolumns = { price = { range = [0, 1e6] } }'


def of(data: str, y: Any, *, claimed: bool) -> PartyStudy:
    """A study of two clients on arrays."""
    section = f"\n[data]\nclients = 2\npublic_num_examples = 20\npartition = {{ kind = 'iid' }}\n{data}\n"
    whole = written(
        data=section, model='[model]\nkind = "mlp"\nhidden = []\n', extra=DPSGD if claimed else ""
    )
    whole = whole.replace("fraction = 0.5", "fraction = 1.0")
    if claimed:
        whole = whole.replace('adjacency = "replace-one"', 'adjacency = "add-remove"')
    study = parse(whole, brought=Brought(data=(UNIT, y)))
    assert study.claims == claimed
    return PartyStudy.of(study, study.arms[0], study.study.seeds[0])


def own(home: Path, y: Any) -> str:
    np.savez(home / "own.npz", x=UNIT[: len(y)], y=y)
    return str(home / "own.npz")


@every("claimed", [False, True])
def test_targets_are_scaled_as_those_of_the_studys_arrays(tmp_path: Path, claimed: bool) -> None:
    """Those that the study dealt were scaled, and a file's own were not."""
    y = UNIT[:, :2] * np.float32([1e6, 1])
    found = data_of(of(PRICES, y, claimed=claimed), 0, own(tmp_path, y)).records[1]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, UNIT[:, :2], rtol=1e-5)


@every("odd", [(-1, 1), (7.5, 0), (0, 0.5)])
def test_several_labels_are_0_and_1(tmp_path: Path, odd: tuple[float, float]) -> None:
    y = LABELS.astype(np.float32)
    y[3] = odd
    path = own(tmp_path, y)
    with pytest.raises(DataError, match="expected labels of 0 and 1, as the study has them, got some from"):
        data_of(of("classes = 2", LABELS, claimed=False), 0, path)
    private = of("classes = 2", LABELS, claimed=True)
    x, y = data_of(private, 0, path).records
    given: dict[str, Any] = {"client": 0, "round": 1, "public": {}, "rng": np.random.default_rng(0)}
    context = ClientContext(x=x, y=y, broadcast=private.world.problem.initial, **given)
    left = usable(private.world.problem, context)
    assert np.array_equal(left.x, np.delete(x, 3, 0))
    assert np.array_equal(left.y, np.delete(LABELS, 3, 0))
