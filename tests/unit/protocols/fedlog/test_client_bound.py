"""A client's whole statistic under `client_bound`: what truncation adds to a record's sensitivity."""

from __future__ import annotations

from math import ceil, sqrt
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_problem import client_context, tiny_problem

from securefl.core.release import Adjacency
from securefl.protocols.class_sums import Clipping, Statistic
from securefl.protocols.fedlog.bodies import Public

CLASSES, WIDTH, EACH = 100, 256, 20


def statistic(client_bound: float | None = None) -> Statistic:
    """Records that are their own features."""
    problem = tiny_problem(width=WIDTH, hidden=(), outputs=CLASSES, clients=2, records=CLASSES * EACH)
    clip = Clipping()
    return Statistic(Public(problem, clip.activation()), clip, CLASSES, WIDTH, 2, client_bound)


def integers(made: Statistic, x: Any, y: Any) -> Any:
    value = made.compute(client_context(np.asarray(x, np.float32), np.asarray(y))).integers
    assert value is not None
    return value


def attack(adjacency: Adjacency) -> tuple[float, Statistic]:
    """How far one record moves a statistic that lies on the bound, and the statistic.

    Without the record, or with the first of the two, all entries are whole numbers just within the bound. The
    record pushes them across it, nearly at a right angle. Scaling them back then takes next to nothing of
    each entry, and truncation a whole unit.
    """
    x, y = np.ones((CLASSES * EACH, WIDTH)), np.repeat(np.arange(CLASSES), EACH)
    along = np.where(np.arange(WIDTH) < WIDTH // 2, 1.0, -1.0)[None]
    if adjacency == "add-remove":
        one, other = (x, y), (np.vstack([x, -np.ones((1, WIDTH))]), np.append(y, 0))
    else:
        one, other = ((np.vstack([x, -along, record]), np.append(y, [0, 0])) for record in (along, -along))
    grid = statistic().spec.grid
    made = statistic(ceil(np.linalg.norm(integers(statistic(), *one))) * grid.step)
    moved = np.linalg.norm(integers(made, *one) - integers(made, *other))
    return float(moved) * grid.step, made


@every("adjacency", ["add-remove", "replace-one"])
def test_a_record_moves_a_clipped_statistic_further_than_a_whole_one(adjacency: Adjacency) -> None:
    moved, made = attack(adjacency)
    assert moved > 1.001 * statistic().spec.sensitivity["record", adjacency]
    assert moved <= made.spec.sensitivity["record", adjacency]


@every("bound", [0.01, 60.0, 2.0**20])
def test_the_declared_sensitivities_count_one_unit_an_entry(bound: float) -> None:
    plain, clipped = statistic().spec.sensitivity, statistic(bound).spec.sensitivity
    more = sqrt(CLASSES * (1 + WIDTH)) * 2.0**-10
    for adjacency in ("add-remove", "replace-one"):
        assert clipped["record", adjacency] - plain["record", adjacency] == pytest.approx(
            more + bound * 2.0**-19, rel=1e-3
        )
    assert (clipped["client", "zero-out"], clipped["client", "replace-one"]) == (bound, 2 * bound)
