"""What `load` gives: of embedded and invented files always, of the real files where they are."""

from __future__ import annotations

import gzip
import os
import struct
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import DataError
from securefl.data import shakespeare
from securefl.data.dataset import Dataset, Split
from securefl.data.digests import CIFAR10_DECODED, GAS_RANGES, NAMES, PINNED, DataFile
from securefl.data.files import verified
from securefl.data.sides import Sides
from securefl.data.sources import _gas_turbine, cifar_records, load, read_idx, require_files

REAL = os.environ.get("SECUREFL_DATA", "")


def needs(files: tuple[DataFile, ...]) -> pytest.MarkDecorator:
    there = bool(REAL) and all((Path(REAL) / file.path).is_file() for file in files)
    return pytest.mark.skipif(not there, reason="set SECUREFL_DATA to a folder that holds the real files")


def counts(split: Split) -> tuple[int, int]:
    return len(split.train), len(split.test)


def names(part: Dataset) -> set[int]:
    assert part.groups is not None
    return set(part.groups.tolist())


def test_digits_ship_with_a_dependency_and_split_by_class() -> None:
    digits = load("digits")

    assert sum(counts(digits)) == 1797
    assert digits.train.shape == (1, 8, 8)
    assert digits.train.x.dtype == np.float32
    assert (digits.train.x.min(), digits.train.x.max()) == (0, 1)
    share = np.bincount(digits.test.y) / np.bincount(np.concatenate([digits.train.y, digits.test.y]))
    assert np.abs(share - 0.3).max() < 0.005


def test_a_seeded_split_repeats_and_another_seed_gives_another() -> None:
    first, again, other = load("digits", seed=1), load("digits", seed=1), load("digits", seed=2)

    np.testing.assert_array_equal(first.train.x, again.train.x)
    assert not np.array_equal(first.train.x, other.train.x)


# --- formats -----------------------------------------------------------------------------------


@every(
    ("head", "body", "expected"),
    [
        ([0, 0, 8, 3, 2, 2, 3], bytes(range(12)), np.arange(12, dtype=np.uint8).reshape(2, 2, 3)),
        ([0, 0, 12, 2, 1, 2], struct.pack(">ii", 258, -3), np.array([[258, -3]], np.int32)),
    ],
)
def test_an_idx_file_keeps_its_order_and_signs(
    head: list[int], body: bytes, expected: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(bytes(head[:4]) + struct.pack(f">{len(head) - 4}I", *head[4:]) + body))
    found = read_idx(path)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_a_cifar_record_is_a_label_and_three_planes() -> None:
    content = b"".join(
        bytes([label, *(k for k in planes for _ in range(1024))])
        for label, planes in ((3, (1, 2, 3)), (9, (4, 5, 6)))
    )
    records = cifar_records(content)
    assert records[:, 0].tolist() == [3, 9]
    assert records[:, 1:].reshape(2, 3, 32, 32)[:, :, 31, 0].tolist() == [[1, 2, 3], [4, 5, 6]]


# --- roles -------------------------------------------------------------------------------------

PLAY = "ROMEO:\nOne.\nTwo.\n\nJULIET:\nThree: four.\n\n\nROMEO:\nFive.\n"


def test_speeches_are_joined_by_role_without_the_names() -> None:
    assert shakespeare.speeches(PLAY) == {"ROMEO": "One.\nTwo.\nFive.", "JULIET": "Three: four."}


def test_windows_hold_eighty_characters_and_predict_the_next() -> None:
    codes = np.arange(101)

    x, y = shakespeare.windows(codes)

    assert x.tolist() == [list(range(s, s + 80)) for s in (0, 10, 20)]
    assert y.tolist() == [80, 90, 100]
    assert len(shakespeare.windows(codes[:80])[0]) == 0


def test_no_character_of_a_roles_test_part_is_seen_in_training() -> None:
    letters = [chr(c) for c in range(0x100, 0x100 + 2500)]  # each occurs once, so it can be traced
    text = "A:\n" + "".join(letters) + "\n\nB:\nToo short to be a client.\n"

    split = shakespeare.split(text, np.random.default_rng(3))

    seen = set(split.train.x.ravel().tolist()) | set(split.train.y.tolist())
    held = set(split.test.x.ravel().tolist()) | set(split.test.y.tolist())
    assert not seen & held
    assert 400 < len(held) <= 500
    assert names(split.train) == names(split.test) == {0}


# --- what prepares a record is public ------------------------------------------------------------


def gas_file(folder: Path, rows: np.ndarray) -> Path:
    lines = [",".join(GAS_RANGES), *(",".join(map(repr, row)) for row in rows.tolist())]
    path = folder / f"{len(rows)}.csv"
    path.write_text("\n".join(lines), encoding="ascii")
    return path


def scaled(folder: Path, rows: np.ndarray) -> set[tuple[float, ...]]:
    split = _gas_turbine([gas_file(folder, rows)], np.random.default_rng(0), Sides(0))
    whole = np.concatenate([np.hstack([part.x, part.y]) for part in (split.train, split.test)])
    return {tuple(row) for row in whole.tolist()}


def test_one_row_more_moves_no_other_row_of_gas_turbine(tmp_path: Path) -> None:
    low, high = np.array([*GAS_RANGES.values()]).T
    rows = np.random.default_rng(0).uniform(low, high, (20, 11))
    before = scaled(tmp_path, rows)
    for extreme in (low - 1e6, high + 1e6):
        after = scaled(tmp_path, np.concatenate([rows, extreme[None]]))
        assert before < after
        assert after - before == {(float(extreme[0] > 0),) * 11}


def test_a_source_says_what_it_worked_out_from_its_records(tmp_path: Path) -> None:
    letters = "".join(chr(c) for c in range(0x100, 0x100 + 2500))
    split = shakespeare.split(f"A:\n{letters}", np.random.default_rng(3))
    assert "vocabulary" in split.train.fitted
    assert "vocabulary" in split.test.take(slice(0, 2)).fitted
    assert not load("digits").train.fitted


# --- the real files ----------------------------------------------------------------------------


@needs(PINNED["mnist"])
def test_mnist_is_what_it_should_be() -> None:
    mnist = load("mnist")

    assert counts(mnist) == (60_000, 10_000)
    assert mnist.train.shape == (1, 28, 28)
    assert np.bincount(mnist.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # which way is up: a seven has its bar above, and a one stands upright
    seven = mnist.test.x[mnist.test.y == 7].mean(axis=(0, 1))
    assert seven[5:12].mean() > 1.3 * seven[16:23].mean()
    one = mnist.test.x[mnist.test.y == 1].mean(axis=(0, 1))
    assert one.sum(axis=0).std() > 1.3 * one.sum(axis=1).std()
    # the mean that everybody normalises MNIST with
    assert abs(mnist.train.x.mean(dtype=np.float64) - 0.1307) < 1e-4


@needs(PINNED["fashion_mnist"])
def test_fashion_mnist_is_what_it_should_be() -> None:
    fashion = load("fashion_mnist")

    assert counts(fashion) == (60_000, 10_000)
    assert np.bincount(fashion.train.y).tolist() == [6_000] * 10
    assert abs(fashion.train.x.mean(dtype=np.float64) - 0.2860) < 1e-4


@needs(PINNED["qmnist"])
def test_qmnist_knows_who_wrote_each_image_and_no_writer_is_in_both_parts() -> None:
    qmnist = load("qmnist")

    assert counts(qmnist) == (60_000, 10_000)
    assert len(names(qmnist.train)) == 539
    assert len(names(qmnist.test)) == 297
    assert not names(qmnist.train) & names(qmnist.test)


@needs(PINNED["gas_turbine"])
def test_gas_turbine_has_all_columns_scaled_to_the_unit_interval() -> None:
    gas = load("gas_turbine")

    assert sum(counts(gas)) == 36_733
    assert len(gas.test) == round(0.3 * 36_733)
    assert (gas.train.shape, gas.train.y.shape[1], gas.train.classes) == ((9,), 2, 0)
    whole = np.concatenate([np.hstack([part.x, part.y]) for part in (gas.train, gas.test)])
    # the published ranges are the data's own to two decimals
    np.testing.assert_allclose(whole.min(axis=0), 0, atol=6e-4)
    np.testing.assert_allclose(whole.max(axis=0), 1, atol=6e-4)
    assert whole.min() == 0
    assert whole.max() == 1
    assert not gas.train.fitted


@needs(PINNED["shakespeare"])
def test_shakespeare_has_99_roles_and_65_characters() -> None:
    plays = load("shakespeare")

    assert plays.train.classes == 65
    assert names(plays.train) == names(plays.test) == set(range(99))
    assert plays.train.shape == (80,)
    assert plays.train.x.dtype == np.int64
    assert 0.18 < len(plays.test) / sum(counts(plays)) < 0.22
    text = (Path(REAL) / PINNED["shakespeare"][0].path).read_text()
    record = "".join(np.array(sorted(set(text)))[plays.train.x[0]])
    assert record in shakespeare.speeches(text)[shakespeare.large_roles(shakespeare.speeches(text))[0]]


@every("name", [name for name in NAMES if PINNED[name]])
def test_every_set_with_files_says_which_one_is_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"securefl data fetch {name}"):
        load(name, folder=tmp_path)
    with pytest.raises(DataError, match=PINNED[name][0].path):
        verified(name, PINNED[name][0], tmp_path)


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, timeout: float) -> None:
        raise urllib.error.URLError(f"no network for {url}")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


def test_download_asks_the_network_for_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_network(monkeypatch)
    with pytest.raises(DataError, match="https://ossci-datasets"):
        load("mnist", folder=tmp_path, download=True)


@every("named", ["SECUREFL_DATA", "XDG_CACHE_HOME"])
def test_decoded_cifar_is_checked_and_preferred_to_a_download(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_network(monkeypatch)
    monkeypatch.setenv("SECUREFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = {"SECUREFL_DATA": tmp_path / "data", "XDG_CACHE_HOME": tmp_path / "cache" / "securefl"}[named]
    (place / "cifar10" / "decoded").mkdir(parents=True)
    for file in CIFAR10_DECODED:
        (place / file.path).write_bytes(b"forged")

    with pytest.raises(DataError, match=r"decoded/data_batch_1\.bin"):
        load("cifar10", download=True)
    with pytest.raises(DataError, match="data fetch cifar10"):
        load("cifar10", folder=tmp_path / "other")  # a named folder is the only one


def test_required_files_are_those_that_would_be_read(tmp_path: Path) -> None:
    require_files("digits", folder=tmp_path)
    with pytest.raises(DataError, match="data fetch cifar10"):
        require_files("cifar10", folder=tmp_path)
    for file in CIFAR10_DECODED:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(b"")
    with pytest.raises(DataError, match=r"decoded/data_batch_1\.bin"):
        require_files("cifar10", folder=tmp_path)
