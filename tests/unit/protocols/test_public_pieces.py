"""The systems' pieces for other training loops: their names, examples, sensitivities, and a loop for each."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import DataError
from securefl.matching.profiles import Anchor
from securefl.protocols import adds, fedcor, fedlog, fedprof, heads

TABLE = {
    "averaging": "Averaging Selection Uniform ServerUpdate Replace known_or_mean cohort_size",
    "fedlog": "FedLog Prior solve objective gradient probabilities statistic_spec",
    "heads": "Heads Parts ridge lda prototypes solve choose statistic_spec",
    "fedprof": "FedProf Clip profile_spec ByProfile",
    "fedcor": "FedCor covariance most_informative fit",
    "adds": "Adds FedDrop Supernet gates bilevel",
}
LAZY = sorted(set(TABLE) - {"averaging"})
FACES = {room: import_module(f"securefl.protocols.{room}") for room in TABLE}
NAMES = [(room, name) for room in TABLE for name in FACES[room].__all__]
STATISTICS = (fedlog.statistic_spec, heads.statistic_spec, fedprof.profile_spec)


# Names -------------------------------------------------------------------------------------------


def test_the_names_of_the_table_are_public() -> None:
    for room, names in TABLE.items():
        assert set(names.split()) <= set(FACES[room].__all__), room
        assert FACES[room].__all__ == sorted(FACES[room].__all__), room


def test_no_submodule_shadows_a_name() -> None:
    for room in LAZY:
        folder = Path(str(FACES[room].__file__)).parent
        assert not {path.stem for path in folder.iterdir()} & set(FACES[room].__all__), room


def test_examples_run_and_errors_are_named() -> None:
    for room, name in NAMES:
        require_documented(room, name)


def require_documented(room: str, name: str) -> None:
    found = getattr(FACES[room], name)
    assert "Raises" in (inspect.getdoc(found) or "")
    if inspect.isfunction(found):
        assert "Args:" in found.__doc__
        assert "Returns:" in found.__doc__
    (example,) = [one for one in doctest.DocTestFinder(recurse=False).find(found, name, globs={}) if one]
    assert any(f"from securefl.protocols.{room} import" in one.source for one in example.examples)
    told: list[str] = []
    failures, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
        example, out=told.append
    )
    assert not failures, "".join(told)


@every("of", STATISTICS)
def test_a_statistic_that_leaves_a_client_names_its_sensitivity(of: Any) -> None:
    (paragraph,) = [part for part in inspect.getdoc(of).split("\n\n") if part.startswith("Sensitivity")]
    for word in ("L2", "one record", "add-remove", "replace-one"):
        assert word in paragraph


# Sensitivities -----------------------------------------------------------------------------------


def test_features_without_a_bound_have_no_sensitivity() -> None:
    assert fedlog.statistic_spec(3, 4, fedlog.Clipping(kind="none"))[0].sensitivity == {}


# A loop of somebody else's, for each system ------------------------------------------------------


def clients(count: int = 4, n: int = 60) -> list[tuple[Any, Any]]:
    """Three classes around three corners. Client k has more of class k."""
    rng = np.random.default_rng(0)
    made = []
    for k in range(count):
        y = rng.choice(3, n, p=np.roll([0.6, 0.2, 0.2], k))
        made.append((np.eye(3, 4)[y] + 0.2 * rng.normal(size=(n, 4)), y))
    return made


def accuracy(head: Any, features: Any, of: list[tuple[Any, Any]]) -> float:
    """Of a head (C, 1 + k), bias first, on features that the caller's function bounds."""
    right = [(features(x) @ head[:, 1:].T + head[:, 0]).argmax(1) == y for x, y in of]
    return float(np.mean(np.concatenate(right)))


# What does not fit together ----------------------------------------------------------------------


@every(
    ("call", "said"),
    [
        (lambda: fedlog.statistic_spec(2, 2)[1](np.zeros((3, 2)), np.zeros(2, int)), r"\(n, 2\)"),
        (lambda: fedlog.statistic_spec(2, 2)[1](np.zeros(3), np.zeros(3, int)), r"\(n, 2\)"),
        (
            lambda: heads.statistic_spec(heads.Blocks(classes=2, width=3, grid=heads.grid_of(9, 3)))[1](
                np.zeros((3, 2)), np.zeros(3, int)
            ),
            r"features \(n, 3\)",
        ),
        (
            lambda: fedcor.fit(np.zeros((2, 3)), np.zeros((1, 4)), np.ones(1), steps=1, learning_rate=0.1),
            "embedding",
        ),
        (lambda: fedcor.most_informative(np.eye(3), np.ones(2), 1), r"beside \(3, 3\)"),
        (lambda: fedcor.most_informative(np.zeros((3, 2)), np.ones(3), 1), r"beside \(3, 2\)"),
        (lambda: adds.gates(np.ones(3), 0.5, 0.1, np.ones(2)), "one lot for each unit"),
        (lambda: adds.gates(np.ones(0), 0.5, 0.1, np.ones(0)), "one lot for each unit"),
        (lambda: adds.gates(np.ones(3), 1.0, 0.1, np.ones(3)), "alpha 1.0"),
        (lambda: adds.gates(np.array([1.0, np.nan]), 0.5, 0.1, np.ones(2)), "finite importance"),
        (lambda: fedprof.profile_spec(fedprof.Clip(outputs=1.0, squares=1.0))[1](
            np.zeros((3, 3)), Anchor(np.zeros(2), np.ones(2))), "2 elements"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_together_are_refused(call: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        call()
