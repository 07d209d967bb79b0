"""Heads in closed form against their definitions, and under noise that outweighs the records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from support.every import every

from securefl.core.errors import DataError
from securefl.protocols.heads.blocks import Parts
from securefl.protocols.heads.solvers import lda, prototypes, ridge, solve, strength_of


def records(n: int = 300, k: int = 6, classes: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = rng.integers(classes, size=n)
    phi = rng.standard_normal((n, k)) + 2 * np.eye(classes, k)[y]
    return phi / 8, y


def parts(phi: Any, y: Any, classes: int = 3, **noise: float) -> Parts:
    member = np.eye(classes)[y]
    return Parts(counts=member.sum(0), sums=member.T @ phi, moments=phi.T @ phi, **noise)


def test_ridge_is_the_least_squares_head() -> None:
    phi, y = records()
    head = ridge(parts(phi, y), strength=0.5)
    wanted = np.linalg.solve(phi.T @ phi + 0.5 * np.eye(6), phi.T @ np.eye(3)[y]).T
    assert np.allclose(head[:, 1:], wanted)
    assert not head[:, 0].any()


def test_lda_gives_the_scores_of_scikit_learn() -> None:
    phi, y = records()
    head = lda(parts(phi, y), strength=1e-9)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(phi, y).decision_function(phi)
    # theirs divides the scatter by n too; scores agree up to a constant per record
    ours = phi @ head[:, 1:].T + head[:, 0]
    assert np.allclose(ours - ours[:, :1], theirs - theirs[:, :1], atol=1e-6)


def test_prototypes_are_unit_class_sums() -> None:
    phi, y = records()
    head = prototypes(parts(phi, y))
    assert np.allclose(np.linalg.norm(head[:, 1:], axis=1), 1)
    assert np.allclose(head[0, 1:] @ phi[y == 0].sum(0), np.linalg.norm(phi[y == 0].sum(0)))


def test_a_class_that_nobody_holds_is_hardly_predicted() -> None:
    """By LDA never, which has counts. To the others its score is 0, above those of a record like no class."""
    phi, y = records()
    for kind in ("prototypes", "ridge", "lda"):
        head = solve(kind, parts(phi, y, classes=4))  # type: ignore[arg-type]
        assert np.isfinite(head).all()
        predicted = (phi @ head[:, 1:].T + head[:, 0]).argmax(1)
        assert np.mean(predicted == 3) <= (0 if kind == "lda" else 0.1)


def test_noised_moments_are_made_positive() -> None:
    """Noise far beyond the records gives negative eigenvalues. The head stays finite and bounded."""
    phi, y = records(n=20)
    rng = np.random.default_rng(1)
    noise = 50 * rng.standard_normal((6, 6))
    sums = parts(phi, y, moments_noise=50.0, counts_noise=50.0)
    spoilt = Parts(
        counts=sums.counts, sums=sums.sums, moments=sums.moments + (noise + noise.T) / 2, moments_noise=50.0
    )
    assert np.linalg.eigvalsh(spoilt.moments).min() < 0
    head = ridge(spoilt)
    assert np.linalg.norm(head) <= np.linalg.norm(spoilt.sums) / strength_of(spoilt)


def test_fewer_records_than_features_and_no_noise_have_a_head() -> None:
    """The moments are singular: one record's worth is added to each direction."""
    phi, y = records(n=4, k=50)
    assert strength_of(parts(phi, y)) == 1.0
    for kind in ("ridge", "lda"):
        assert np.isfinite(solve(kind, parts(phi, y))).all()  # type: ignore[arg-type]


def test_the_strength_follows_the_edge_of_the_noise_s_spectrum() -> None:
    """0.35 of Wigner's edge s sqrt(2 k) with many features, 16 s with few."""
    rng = np.random.default_rng(0)
    k, s = 3000, 2.0
    wide = Parts(counts=np.zeros(0), sums=np.zeros((2, k)), moments=np.zeros((k, k)), moments_noise=s)
    assert strength_of(wide) == pytest.approx(0.35 * s * np.sqrt(2 * k))
    small = rng.standard_normal((300, 300)) * s / np.sqrt(2)
    noise = np.triu(small, 1) + np.triu(small, 1).T + np.diag(rng.standard_normal(300) * s)
    assert np.linalg.eigvalsh(noise).max() == pytest.approx(s * np.sqrt(600), rel=0.1)
    narrow = Parts(counts=np.zeros(0), sums=np.zeros((2, 9)), moments=np.zeros((9, 9)), moments_noise=s)
    assert strength_of(narrow) == 16 * s


@every("bad", [np.nan, np.inf])
def test_sums_that_are_not_finite_have_no_head(bad: float) -> None:
    phi, y = records()
    phi = phi.copy()
    phi[0, 0] = bad
    for kind in ("prototypes", "ridge", "lda"):
        with pytest.raises(DataError), np.errstate(all="ignore"):
            solve(kind, parts(phi, y))  # type: ignore[arg-type]


def test_moments_that_cannot_be_decomposed_have_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(moments: object) -> None:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(np.linalg, "eigh", fails)
    for kind in ("ridge", "lda"):
        with pytest.raises(DataError, match="did not converge"):
            solve(kind, parts(*records()))  # type: ignore[arg-type]


def test_counts_below_their_noise_have_no_discriminants() -> None:
    phi, y = records(n=20)
    with pytest.raises(DataError, match="its count has noise"):
        lda(parts(phi, y, counts_noise=100.0))
