"""Names are refused where they enter: what a person could misread, or a terminal obey."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.algorithm.queries import ValueSpec
from securefl.commands.main import cli, main
from securefl.core.agreement import Identity, Roster
from securefl.core.errors import ConfigError, SecureFLError
from securefl.core.reading import convert
from securefl.core.release import ReleaseKey
from securefl.core.text_safety import escaped
from securefl.data import Dataset
from securefl.matching import Evaluator, KeyHolder, Profile
from securefl.study.config import Arm, StudySection, parse
from securefl.study.packaged import packaged

TRICKS = ["a\nb", "\x1b[31mred", "\u202egnp.exe", "\u2066a", "a\u2028b", "\ue000", "\ufeffx", "a\u200bb"]
DEMO = packaged()["demo"]


def dataset(name: str) -> Dataset:
    return Dataset(name=name, x=np.zeros((1, 2), np.float32), y=np.zeros(1, np.int64), classes=1)


def encrypted(label: str) -> object:
    one = Profile(np.zeros(2), np.ones(2))
    return one.encrypt(KeyHolder.generate().public, Evaluator.generate().public, label=label)


ENTRANCES: dict[str, Callable[[str], Any]] = {
    "study": lambda name: convert(StudySection, {"name": name, "rounds": 1}, "study"),
    "study in a file": lambda name: parse(DEMO.replace("Encrypted FedProf on digits", _toml(name))),
    "arm": lambda name: Arm(name=name, protocol="fedavg", options=None),  # type: ignore[arg-type]
    "arm in a file": lambda name: parse(DEMO.replace("FedAvg (full)", _toml(name))),
    "value": lambda name: ValueSpec(name=name, reduction="sum", reveals="it"),
    "holder": lambda name: ReleaseKey(name, bytes(32), 1, 0, 0, "update"),
    "release": lambda name: ReleaseKey("client-0001", bytes(32), 1, 0, 0, name),
    "roster": lambda name: Roster((Identity.generate(name).member(),)),
    "data set": dataset,
    "profile": encrypted,
}


def _toml(name: str) -> str:
    return "".join(f"\\U{ord(letter):08x}" for letter in name)


@every("entrance", ENTRANCES)
def test_a_name_is_refused_where_it_enters(entrance: str) -> None:
    assert ENTRANCES[entrance]("Größe 1") is not None
    for name in TRICKS:
        with pytest.raises(SecureFLError, match="printable") as refused:
            ENTRANCES[entrance](name)
        assert str(refused.value).isprintable()


def test_a_name_is_that_of_a_folder() -> None:
    assert StudySection(name="x" * 200, rounds=1)
    for name in ("", "(!)", "x" * 201, "é" * 101):
        with pytest.raises(ConfigError, match="at most 200 bytes"):
            convert(StudySection, {"name": name, "rounds": 1}, "study")
    with pytest.raises(ConfigError, match=r"\[arm 1\] .*letter"):
        parse(DEMO.replace("FedAvg (full)", "x" * 300))


def test_an_error_does_not_write_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise ConfigError("Expected a\nname, got \x1b[2J\u202e\udc80.")

    monkeypatch.setattr(type(cli), "__call__", lambda self, **_: fail())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "securefl: Expected a\nname, got \\x1b[2J\\u202e\\udc80.\n"


def test_what_can_be_printed_is_not_escaped() -> None:
    text = "Größe „1“ — 東京\n\\n"
    assert escaped(text) == text


def test_keys_of_releases_are_still_plain_values() -> None:
    key = ReleaseKey("client-0001", bytes(32), 1, 0, 0, "update")
    assert dataclasses.replace(key, round=2) > key
