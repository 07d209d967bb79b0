"""Each partition has the shape its paper gives it; requests that cannot be met are refused in words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy.optimize import minimize
from support.every import every

from securefl.core.errors import ConfigError
from securefl.data.dataset import Dataset
from securefl.data.partitions import (
    Partition,
    by_classes,
    class_counts,
    dirichlet,
    dominant_class,
    fedcor,
    iid,
    natural,
    normal_sizes,
    shards,
    smallest_sizes,
)

TEN_CLASSES = np.tile(np.arange(10), 600)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def toy_of(labels: NDArray[np.int64]) -> Dataset:
    return Dataset(name="toy", x=np.zeros((len(labels), 1), np.float32), y=labels, classes=10)


def toy(n: int = 60, classes: int = 3, groups: bool = False) -> Dataset:
    return Dataset(
        name="toy",
        x=np.zeros((n, 2), np.float32),
        y=np.arange(n) % classes if classes else np.zeros((n, 1), np.float32),
        classes=classes,
        groups=np.arange(n) // 10 if groups else None,
    )


@every(("clients", "per_client"), [(50, 2), (7, 3), (10, 1), (3, 10)])
def test_by_classes_gives_each_client_exactly_so_many_classes(clients: int, per_client: int) -> None:
    labels = rng().integers(10, size=900)
    parts = by_classes(labels, clients, per_client, rng())
    assert all(len(np.unique(labels[part])) == per_client for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(900)), "every record once"
    holders = [sum(k in labels[part] for part in parts) for k in range(10)]
    assert max(holders) - min(holders) <= 1


@every("per_client", [1, 2])
def test_shards_give_each_client_so_many_labels_and_equal_sizes(per_client: int) -> None:
    parts = shards(TEN_CLASSES, 100, per_client, rng())

    assert {len(part) for part in parts} == {60}
    assert max(len(np.unique(TEN_CLASSES[part])) for part in parts) == per_client
    assert min(len(np.unique(TEN_CLASSES[part])) for part in parts) == 1


def test_a_shard_is_a_random_sample_of_its_class() -> None:
    (one, *_) = shards(np.zeros(1000, np.int64), 10, 1, rng())

    assert one.max() - one.min() > 500  # in file order a shard of 100 records would span 99


def test_fedcor_sizes_solve_the_quadratic_programme() -> None:
    generator = rng(4)
    mix = generator.dirichlet(np.full(3, 0.4), 12).T
    totals = np.array([50.0, 80.0, 20.0])

    sizes = smallest_sizes(mix, totals)

    assert sizes is not None
    np.testing.assert_allclose(mix @ sizes, totals, atol=1e-3)
    assert sizes.min() >= 0
    reference = minimize(
        lambda x: x @ x,
        np.full(12, 12.5),
        jac=lambda x: 2 * x,
        bounds=[(0, None)] * 12,
        constraints={"type": "eq", "fun": lambda x: mix @ x - totals, "jac": lambda x: mix},
        method="SLSQP",
        options={"ftol": 1e-10, "maxiter": 500},
    )
    np.testing.assert_allclose(sizes, reference.x, atol=0.05)


def test_an_impossible_programme_has_no_solution() -> None:
    assert smallest_sizes(np.array([[1.0, 0.9], [0.0, 0.1]]), np.array([10.0, 10.0])) is None


def test_fedcor_counts_are_the_programmes_solution_to_within_one_record() -> None:
    totals = np.full(10, 600)
    counts = class_counts(totals, 100, 0.2, rng(1))

    mix = rng(1).dirichlet(0.2 * totals / totals.sum(), 100).T  # the draw that class_counts made
    sizes = smallest_sizes(mix, totals.astype(float))
    assert sizes is not None
    assert np.abs(counts.T - mix * sizes).max() < 1.01
    assert counts.sum(axis=0).tolist() == totals.tolist()
    assert counts.sum(axis=1).min() >= 1


def test_a_fedcor_partition_with_too_few_clients_says_so() -> None:
    with pytest.raises(ConfigError, match="more clients"):
        fedcor(TEN_CLASSES, 5, 0.2, rng())


def test_fedcors_splits_are_those_that_the_word_dirichlet_made() -> None:
    """Pinned before the word changed: packaged studies keep the records of each client."""
    data = toy_of(np.repeat(np.arange(10), 60))
    parts = Partition(kind="fedcor", concentration=0.5).split(data, 30, rng(5))
    whole = b"".join(len(part).to_bytes(4, "little") + part.astype("<i8").tobytes() for part in parts)
    assert hashlib.sha256(whole).hexdigest().startswith("096937d0c78ba6d8e35c989b5dada9162aee5443")


def as_flower_draws(
    targets: NDArray[np.int64], clients: int, alpha: float, least: int, draws: np.random.Generator
) -> list[list[int]]:
    """Flower Datasets 0.6's DirichletPartitioner, with its defaults, line by line (and Li et al.'s code)."""
    mean = len(targets) / clients
    while True:
        found: dict[int, list[int]] = {node: [] for node in range(clients)}
        for label in sorted(set(targets.tolist())):
            places = np.nonzero(targets == label)[0]
            shares = dict(enumerate(draws.dirichlet(np.array([alpha]).repeat(clients))))
            for node in shares.copy():
                if len(found[node]) > mean:
                    shares[node] = 0
            total = sum(shares.values())
            shares = {node: share / total for node, share in shares.items()}
            ends = (np.cumsum(list(shares.values())) * len(places)).astype(int)[:-1]
            for node, given in enumerate(np.split(places, ends)):
                found[node].extend(given.tolist())
        if min(map(len, found.values())) >= least:
            return [found[node] for node in range(clients)]


@every(("clients", "alpha", "least"), [(10, 0.5, 10), (12, 0.2, 1), (100, 1.0, 10)])
def test_a_dirichlet_partition_is_flowers_and_li_et_als(clients: int, alpha: float, least: int) -> None:
    parts = dirichlet(TEN_CLASSES, clients, alpha, rng(3), least)
    draws = rng(3)
    order = draws.permutation(len(TEN_CLASSES))
    expected = as_flower_draws(TEN_CLASSES[order], clients, alpha, least, draws)
    assert [part.tolist() for part in parts] == [sorted(order[own].tolist()) for own in expected]


def test_a_least_size_that_no_draw_meets_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="smaller min_size"):
        dirichlet(TEN_CLASSES, 100, 0.001, rng())
    assert min(map(len, dirichlet(TEN_CLASSES, 100, 0.01, rng(), 0))) == 0


def test_dominant_clients_do_not_share_one_favourite_and_spread_the_other_records() -> None:
    parts = dominant_class(TEN_CLASSES, 50, 0.6, rng())

    tops = np.array([np.bincount(TEN_CLASSES[part], minlength=10) for part in parts])
    assert set(tops.max(axis=1)) == {72}
    assert len(set(tops.argmax(axis=1))) >= 8
    rest = np.sort(tops)[:, :-1]
    # 48 records over nine classes: the mean over clients of the rarest one is far from 0
    assert rest[:, 0].mean() > 0.5
    assert rest[:, -1].mean() < 20


def test_dominant_clients_may_have_sizes() -> None:
    sizes = np.array([10, 100, 333])

    parts = dominant_class(TEN_CLASSES, 3, 0.6, rng(), sizes)

    assert [len(part) for part in parts] == [10, 100, 333]
    assert [np.bincount(TEN_CLASSES[part]).max() for part in parts] == [6, 60, 200]


@every(
    ("labels", "clients", "share", "sizes", "expected"),
    [
        (TEN_CLASSES, 2, 0.6, np.array([3000, 3000]), "dominant class"),
        (TEN_CLASSES, 0, 0.5, None, "at least one client"),
        # 90 records of class 0: any client of 50 needs 25 others, and there are only 10
        (np.repeat([0, 1], [90, 10]), 2, 0.5, None, "got too few"),
    ],
)
def test_impossible_dominant_requests_are_refused(
    labels: NDArray[np.int64], clients: int, share: float, sizes: np.ndarray | None, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        dominant_class(labels, clients, share, rng(), sizes)


def test_normal_sizes_follow_the_law_while_there_are_records() -> None:
    sizes = normal_sizes(10**7, 10_000, 500.0, 100.0, rng())

    # the mean has a standard error of 1, the deviation of 0.7: 6 and 5 are beyond 5 sd, false alarm < 1e-6
    assert abs(sizes.mean() - 500) < 6
    assert abs(sizes.std() - 100) < 5


def test_natural_parts_are_the_groups() -> None:
    found = natural(np.array([5, 2, 5, 9, 2]), None, rng())
    assert [part.tolist() for part in found] == [[1, 4], [0, 2], [3]]


@every(
    "call",
    [
        lambda: iid(3, 0, rng()),
        lambda: fedcor(np.zeros(0, np.int64), 1, 1.0, rng()),
        lambda: dominant_class(np.zeros(0, np.int64), 1, 0.5, rng()),
        lambda: natural(np.zeros(0, np.int64), None, rng()),
        *(lambda clients=clients: natural(np.array([1, 2, 3]), clients, rng()) for clients in (0, 4, -1)),
    ],
)
def test_no_client_and_no_record_are_a_configuration_error(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        call()


# --- as configured -----------------------------------------------------------------------------


@every(
    "fields",
    [
        {"kind": "iid"},
        {"kind": "shards", "per_client": 2},
        {"kind": "dirichlet", "alpha": 5.0, "min_size": 1},
        {"kind": "fedcor", "concentration": 5.0},
        {"kind": "dominant", "share": 0.5},
        {"kind": "dominant", "share": 0.5, "mean": 5.0, "deviation": 1.0},
        {"kind": "normal", "mean": 8.0, "deviation": 2.0},
        {"kind": "natural"},
    ],
)
def test_every_kind_splits_and_repeats_under_its_seed(fields: dict[str, object]) -> None:
    partition = TypeAdapter(Partition).validate_python(fields)
    dataset = toy(groups=True)

    parts = partition.split(dataset, 5, rng(1))

    assert len(parts) == 5
    assert all(len(part) for part in parts)
    whole = np.concatenate(parts)
    assert len(np.unique(whole)) == len(whole)
    again, other = (np.concatenate(partition.split(dataset, 5, rng(seed))) for seed in (1, 2))
    assert whole.tolist() == again.tolist()
    assert whole.tolist() != other.tolist()


def test_configured_sizes_reach_the_dominant_partition() -> None:
    parts = Partition(kind="dominant", share=0.5, mean=6.0, deviation=0.0).split(toy(), 4, rng())

    assert [len(part) for part in parts] == [6] * 4


@every(
    ("fields", "expected"),
    [
        ({"kind": "shards"}, "Expected per_client for"),
        ({"kind": "fedcor"}, "Expected concentration for"),
        ({"kind": "dominant"}, "Expected share for"),
        ({"kind": "normal", "mean": 5.0}, "Expected deviation for"),
        ({"kind": "iid", "share": 0.5}, "Expected no share"),
        ({"kind": "natural", "mean": 0.5}, "Expected no mean"),
        ({"kind": "dominant", "share": 0.5, "mean": 5.0}, "both mean and deviation"),
        ({"kind": "dirichlet"}, "Expected alpha for"),
        ({"kind": "dirichlet", "alpha": 1.0, "share": 0.5}, "Expected no share"),
        ({"kind": "fedcor", "alpha": 1.0}, "Expected concentration for"),
    ],
)
def test_a_configuration_with_missing_or_useless_numbers_is_refused(
    fields: dict[str, object], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        Partition(**fields)  # type: ignore[arg-type]  # wrong fields are the point


ZEROS = np.zeros((6, 2), np.float32)
SEVERAL = Dataset(name="f.csv", x=ZEROS, y=ZEROS, classes=0, multi_label=True)


@every(
    ("partition", "of", "expected"),
    [
        (Partition(kind="shards", per_client=1), toy(classes=0), "class labels"),
        (Partition(kind="dirichlet", alpha=1.0), toy(classes=0), "class labels"),
        (Partition(kind="fedcor", concentration=1.0), toy(classes=0), "class labels"),
        (Partition(kind="dominant", share=0.5), toy(classes=0), "class labels"),
        (Partition(kind="natural"), toy(classes=0), "Expected groups"),
        (Partition(kind="dirichlet", alpha=1.0), SEVERAL, r"'f\.csv' with several labels of each record"),
    ],
)
def test_a_data_set_without_what_the_kind_needs_is_refused(
    partition: Partition, of: Dataset, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        partition.split(of, 3, rng())


@every("per_client", [2, 11])
def test_the_numbers_of_classes_that_are_possible_are_said(per_client: int) -> None:
    labels = np.repeat(np.arange(10), 20)
    with pytest.raises(ConfigError, match=f"per_client from 3 to 10, .* got {per_client}"):
        by_classes(labels, 4, per_client, np.random.default_rng(1))
