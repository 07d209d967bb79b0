"""Each corruption does to the data what its name says, to the share of clients it was given."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from support.every import every

from securefl.core.errors import ConfigError
from securefl.data.corruptions import (
    PHOTOGRAPHS,
    Corruption,
    Quality,
    blurred,
    irrelevant,
    photographs,
    polluted,
    salt_and_pepper,
    sensor_noise,
    unrelated,
)
from securefl.data.dataset import Dataset

Floats = NDArray[np.float32]
GREY = np.float32(0.5)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def pictures(
    n: int = 20, shape: tuple[int, ...] = (1, 8, 8), name: str = "toy", classes: int = 10
) -> Dataset:
    x = rng(9).random((n, *shape), dtype=np.float32)
    return Dataset(name=name, x=x, y=np.arange(n) % classes, classes=classes)


def test_sensor_noise_has_mean_zero_and_the_deviation_asked_for() -> None:
    x = np.full((10_000, 9), GREY)

    noise = sensor_noise(x, deviation=0.1, rng=rng()) - x

    # 90,000 draws: standard errors 0.00033 and 0.00024; the bounds are 6 of them, false alarm < 1e-8
    assert abs(noise.mean(dtype=np.float64)) < 0.002
    assert abs(noise.std(dtype=np.float64) - 0.1) < 0.0015
    assert noise.dtype == np.float32


def test_polluted_features_are_uniform_and_know_nothing_of_the_record() -> None:
    x = rng(1).random((10_000, 9), dtype=np.float32)

    spoilt = polluted(x, rng())

    # U(-1, 1) has sd 0.577: the mean of 90,000 has standard error 0.0019; bounds are 6 of it and of
    # the correlation's 0.0033, false alarm < 1e-8
    assert spoilt.min() >= -1
    assert spoilt.max() <= 1
    assert abs(spoilt.mean(dtype=np.float64)) < 0.0116
    assert abs(spoilt.std(dtype=np.float64) - 1 / np.sqrt(3)) < 0.006
    assert abs(np.corrcoef(spoilt.ravel(), x.ravel())[0, 1]) < 0.02


def test_blur_keeps_the_mean_of_each_image_and_takes_its_detail() -> None:
    x = pictures(10, (3, 28, 28)).x

    soft = blurred(x, sigma=2.0)

    np.testing.assert_allclose(soft.mean(axis=(2, 3)), x.mean(axis=(2, 3)), atol=1e-5)
    # white noise under a Gaussian of sigma 2 keeps 1 / (4 pi sigma^2) = 2 % of its variance
    assert (soft.var(axis=(2, 3)) < 0.05 * x.var(axis=(2, 3))).all()


def test_blur_mixes_neither_images_nor_channels() -> None:
    x = np.zeros((2, 3, 9, 9), np.float32)
    x[0, 1, 4, 4] = 1

    soft = blurred(x, sigma=1.0)

    assert soft[0, 1, 4, 5] > 0.05
    assert soft[0, 1, 4, 5] == pytest.approx(soft[0, 1, 5, 4])
    assert soft[0, [0, 2]].max() == 0
    assert soft[1].max() == 0


def test_salt_and_pepper_dots_have_the_density_in_equal_halves() -> None:
    every_channel = salt_and_pepper(np.full((200, 3, 28, 28), GREY), density=0.3, rng=rng())

    dotted = every_channel[:, :1]
    assert (every_channel == dotted).all(), "a dot is black or white in all channels at once"
    # 156,800 pixels: standard errors 0.0012 (all) and 0.0009 (each half); 6 of them, false alarm < 1e-8
    assert abs(float((dotted != GREY).mean()) - 0.3) < 0.007
    assert abs(float((dotted == 1).mean()) - 0.15) < 0.0055
    assert abs(float((dotted == 0).mean()) - 0.15) < 0.0055
    assert dotted.dtype == np.float32


def test_irrelevant_records_are_the_others_and_their_labels_say_nothing() -> None:
    ours = pictures(3000)
    other = photographs(3000, (1, 8, 8), rng(3))

    fake = irrelevant(ours, other, rng())

    theirs = {record.tobytes() for record in other.x}
    assert len(fake) == len(ours)
    assert len({record.tobytes() for record in fake.x} & theirs) > 2900
    # labels: 300 of each expected with sd 16.4, bound 6 sd; agreement 300 likewise: false alarm < 1e-7
    assert np.abs(np.bincount(fake.y, minlength=10) - 300).max() < 99
    assert abs(int((fake.y == ours.y).sum()) - 300) < 99


@every("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 8, 12)])
@every("source", [(1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_irrelevant_records_take_the_shape_of_the_data_set(
    shape: tuple[int, ...], source: tuple[int, ...]
) -> None:
    fake = irrelevant(pictures(10, shape), pictures(7, source, name="other"), rng())

    assert fake.x.shape == (10, *shape), "few irrelevant records are used again"


def test_resizing_keeps_what_is_where() -> None:
    half = np.zeros((1, 1, 28, 28), np.float32)
    half[:, :, :14] = 1
    other = Dataset(name="other", x=half, y=np.zeros(1, np.int64), classes=1)

    fake = irrelevant(pictures(1, (3, 8, 8)), other, rng())

    assert fake.x[0, :, :3].min() > 0.99
    assert fake.x[0, :, 5:].max() < 0.01


@every("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_photographs_are_smooth_pieces_that_differ(shape: tuple[int, ...]) -> None:
    pieces = photographs(50, shape, rng())

    assert pieces.shape == shape
    assert len(np.unique(pieces.x.reshape(50, -1), axis=0)) == 50
    steps = np.abs(np.diff(pieces.x, axis=3)).mean()
    far = np.abs(pieces.x - pieces.x[rng(1).permutation(50)]).mean()
    assert steps < 0.6 * far  # neighbouring pixels are alike, as in no white noise
    np.testing.assert_array_equal(pieces.x, photographs(50, shape, rng()).x)


def test_photographs_are_shrunk_by_block_means(monkeypatch: pytest.MonkeyPatch) -> None:
    board = np.indices((427, 640)).sum(axis=0)[..., None] % 2 * np.full(3, 255)
    monkeypatch.setattr("sklearn.datasets.load_sample_image", lambda name: board)

    pieces = photographs(20, (1, 8, 8), rng())

    # blocks of 5 to 8 pixels a side hold as many black as white ones, but for one in at least 25
    assert np.abs(pieces.x - 0.5).max() <= 0.5 / 25 + 1e-6


FEDPROF = Corruption(irrelevant=0.15, blurred=0.2, pixel=0.25, irrelevant_source=PHOTOGRAPHS)


def test_clients_are_assigned_in_exact_numbers_at_random_places() -> None:
    words = FEDPROF.assign(500, rng(1))

    assert Counter(words) == {"irrelevant": 75, "blurred": 100, "pixel": 125, "clean": 200}
    assert words == FEDPROF.assign(500, rng(1))
    assert words != FEDPROF.assign(500, rng(2))
    assert words[:75] != ("irrelevant",) * 75


@every("clients", [1, 3, 7, 10, 100])
def test_every_count_is_within_one_of_its_share(clients: int) -> None:
    config = Corruption(noisy=0.29, polluted=0.21, blurred=0.5)

    words = config.assign(clients, rng())

    assert len(words) == clients
    for word, share in (("noisy", 0.29), ("polluted", 0.21), ("blurred", 0.5), ("clean", 0.0)):
        assert abs(words.count(word) - share * clients) < 1
    assert "clean" not in words


@every("quality", ["noisy", "polluted", "irrelevant", "blurred", "pixel"])
def test_each_quality_changes_the_records_and_leaves_the_original_alone(quality: Quality) -> None:
    dataset = pictures()
    assert FEDPROF.apply(dataset, "clean", rng()) is dataset
    before = dataset.x.copy()

    spoilt = FEDPROF.apply(dataset, quality, rng(1), photographs(20, (1, 8, 8), rng()))

    assert not np.array_equal(spoilt.x, before)
    assert np.array_equal(spoilt.y, dataset.y) == (quality != "irrelevant")
    np.testing.assert_array_equal(dataset.x, before)
    again = FEDPROF.apply(dataset, quality, rng(1), photographs(20, (1, 8, 8), rng()))
    np.testing.assert_array_equal(spoilt.x, again.x)


def test_configured_strengths_are_used() -> None:
    x = pictures().x
    config = Corruption(noise_deviation=0.7, blur_sigma=0.9, pixel_density=0.9)

    noisy = config.apply(pictures(), "noisy", rng()).x
    np.testing.assert_array_equal(noisy, sensor_noise(x, deviation=0.7, rng=rng()))
    np.testing.assert_array_equal(config.apply(pictures(), "blurred", rng()).x, blurred(x, sigma=0.9))
    dotted = config.apply(pictures(), "pixel", rng()).x
    np.testing.assert_array_equal(dotted, salt_and_pepper(x, density=0.9, rng=rng()))


@every(
    ("fields", "expected"),
    [
        ({"noisy": 0.6, "polluted": 0.5}, "sum to at most 1, got 1.1"),
        ({"irrelevant": 0.1}, "irrelevant_source"),
        ({"irrelevant_source": "mnist"}, "irrelevant_source"),
    ],
)
def test_shares_that_do_not_fit_together_are_refused(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Corruption(**fields)  # type: ignore[arg-type]  # wrong fields are the point


TEXT = Dataset(name="text", x=np.zeros((4, 80), np.int64), y=np.zeros(4, np.int64), classes=65)
ROWS = Dataset(name="rows", x=np.zeros((4, 9), np.float32), y=np.zeros((4, 2), np.float32), classes=0)
REGRESSION = Dataset(name="reg", x=pictures(4).x, y=np.zeros((4, 1), np.float32), classes=0)


@every(
    ("quality", "of", "said"),
    [
        *((quality, TEXT, "real-valued") for quality in ("noisy", "polluted", "blurred", "pixel")),
        *((quality, ROWS, "images") for quality in ("blurred", "pixel")),
        ("irrelevant", pictures(), "Pass `unrelated"),
    ],
)
def test_records_that_do_not_suit_a_corruption_are_refused(quality: Quality, of: Dataset, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FEDPROF.apply(of, quality, rng())


def test_irrelevant_records_are_images_of_another_set_beside_classes() -> None:
    with pytest.raises(ConfigError, match="images"):
        unrelated(FEDPROF, ROWS, rng())
    with pytest.raises(ConfigError, match="got none"):
        irrelevant(pictures(), pictures(0, name="other"), rng())
    with pytest.raises(ConfigError, match="Expected classes"):
        irrelevant(REGRESSION, pictures(), rng())


def test_the_source_of_irrelevant_records_is_photographs_or_another_set() -> None:
    assert unrelated(Corruption(), pictures(), rng()) is None

    pieces = unrelated(FEDPROF, pictures(), rng())
    assert pieces is not None
    assert (pieces.name, pieces.shape, len(pieces)) == ("photographs", (1, 8, 8), 20)

    digits = unrelated(Corruption(irrelevant=0.1, irrelevant_source="digits"), pictures(), rng())
    assert digits is not None
    assert (digits.name, digits.classes) == ("digits", 10)

    with pytest.raises(ConfigError, match="the data set itself"):
        unrelated(Corruption(irrelevant=0.1, irrelevant_source="toy"), pictures(), rng())
