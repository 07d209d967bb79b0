"""The remedy for a missing package, in a checkout and from a wheel: both have the metadata that it reads."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from securefl.core.errors import ConfigError
from securefl.core.installed import needing

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
NAMED = {
    found
    for path in (ROOT / "securefl").rglob("*.py")
    for found in re.findall(r'needing\("(\w+)"', path.read_text("utf-8"))
}
"""The extras that the product asks for."""


def test_the_product_asks_for_extras_that_there_are() -> None:
    assert len(NAMED) >= 8
    assert NAMED.issubset(EXTRAS)


@pytest.mark.parametrize("extra", sorted(NAMED))
def test_the_command_names_the_packages_of_the_extra(extra: str) -> None:
    why = "for a test, got: No module named 'no_such_package'"
    with pytest.raises(ConfigError, match=why) as refused, needing(extra, "for a test"):
        import_module("no_such_package")
    command = shlex.split(str(refused.value).partition(" Install them: ")[2])
    assert command[:2] == ["pip", "install"]
    assert {Requirement(one) for one in command[2:]} == {Requirement(one) for one in EXTRAS[extra]}


def test_an_extra_that_the_installed_metadata_lacks_gets_no_empty_command() -> None:
    with (
        pytest.raises(ConfigError, match=r"has no such extra: install this .* again\.$"),
        needing("none", "here"),
    ):
        import_module("no_such_package")
