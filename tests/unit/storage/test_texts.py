"""Texts of people and peers: bounded before they are parsed, and refused in a sentence."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.matching.profile_file import read_profile
from securefl.storage.texts import LARGEST_TOML, elements, read_text, toml
from securefl.study.config import parse, read
from securefl.study.packaged import packaged
from securefl.sweep.cells import has_sweep, parse_sweep

DEMO = packaged()["demo"]


def test_a_file_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    with path.open("wb") as target:
        target.truncate(2**30)  # of zeros, which take no space
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"65,536 .*1,073,741,824"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    with pytest.raises(ConfigError, match=r"/dev/zero: .*a device"):
        read_text(Path("/dev/zero"))


def test_a_text_as_long_as_allowed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("#" * LARGEST_TOML)
    assert toml(read_text(path)) == {}
    with pytest.raises(ConfigError, match="TOML, got 65,537"):
        toml("#" * (LARGEST_TOML + 1))


@every(
    "content",
    [DEMO.encode("utf-16"), DEMO.encode("utf-16-le"), b"\xff" + DEMO.encode(), DEMO.encode() + b"\0"],
)
def test_another_encoding_is_told_as_such(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="UTF-8"):
        read(path)


def test_a_byte_order_mark_is_no_part_of_a_study(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(b"\xef\xbb\xbf" + DEMO.encode())
    assert replace(read(path), file="", home=None) == parse(DEMO)


@every(
    ("text", "what"),
    [
        ("a = " + "[" * 60_000, "at most 16 levels"),
        ("a = " + "{a = " * 10_000, "at most 16 levels"),
        ("[" + ".".join("a" * 2_000) + "]", "at most 16 levels"),
        ("[model]\nhidden." + ".".join("a" * 2_000) + " = 1", "at most 16 levels"),
        ("a." * 30_000 + "a = 1", "at most 16 levels"),
        ("[" + "a . " * 15_000 + "b]", "at most 16 levels"),
        ("a = " + "[" * 17 + "]" * 17, "at most 16 levels"),
        ("a = " + "9" * 10_000, "Expected TOML"),
        ("a = ", "Expected TOML"),
        ('"\\u001b[2J" = 1', r"keys of printable letters, got '\\x1b\[2J'"),
        ('[model]\n"\\u202ehidden" = 1', "keys of printable letters"),
    ],
)
def test_what_is_no_study_is_one_sentence(text: str, what: str) -> None:
    for reader in (parse, parse_sweep):
        with pytest.raises(ConfigError, match=what) as refused:
            reader(text)
        assert str(refused.value).isprintable()
    assert not has_sweep(text)


def test_as_many_levels_as_a_study_has_are_read() -> None:
    assert toml("a = " + "[" * 15 + "]" * 15)
    assert toml(DEMO)
    assert toml(f"a = [{', '.join(['0.25'] * 5_000)}]\nb = '{'x' * 15_000}'\nc = '{'a b. ' * 1_000}'")


@every("text", ["[]", "[[], {}]", '{"a": [1, 2, 3], "b,": "[{"}', "7", '[["a"], ["b"]]'])
def test_no_value_of_a_json_text_is_missed(text: str) -> None:
    def count(value: object) -> int:
        inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        return 1 + sum(map(count, inner))

    assert elements(text.encode()) >= count(json.loads(text))


def test_a_profile_of_many_empty_lists_is_refused_before_one_is_made(tmp_path: Path) -> None:
    path, count = tmp_path / "p.json", 2**21
    path.write_bytes(b'{"mean": [' + b"[]," * count + b"[]]}")
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="1,048,576 numbers"):
            read_profile(path)
        assert tracemalloc.get_traced_memory()[1] < 3 * path.stat().st_size
    finally:
        tracemalloc.stop()


@every("number", ["0x" + "f" * 20_000, "9223372036854775808", "-9223372036854775809"])
def test_a_number_of_more_bits_than_toml_has_is_refused(number: str) -> None:
    assert toml("a = 9223372036854775807") == {"a": 2**63 - 1}
    for text in (f"a = {number}", f"[a]\nb = [1, [{number}]]"):
        with pytest.raises(ConfigError, match=r"64 bits|4300 digits"):
            toml(text)
