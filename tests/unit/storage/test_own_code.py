"""A study names code of installed packages and of its own folder, and nothing else is ever run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.every import every
from support.outside import installed

from securefl.core.errors import ConfigError
from securefl.storage.own_code import load, located, names_code

SAYS = "def load():\n    return {!r}\n"


def module(home: Path, name: str, text: str) -> Path:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_module_of_the_folder_is_found_without_being_run(tmp_path: Path) -> None:
    path = module(tmp_path, "mine.py", "raise RuntimeError('run')\n")
    place = located("mine:load", tmp_path)
    assert place.file == path.resolve()
    assert str(path.resolve()) in str(place)
    with pytest.raises(ConfigError, match="RuntimeError: run"):
        load(place)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    module(tmp_path, "mine.py", "import beside_me\nload = beside_me.load\n")
    module(tmp_path, "beside_me.py", SAYS.format("first"))
    path, names = list(vars(sys)["path"]), set(sys.modules)
    assert load(located("mine:load", tmp_path))() == "first"
    assert vars(sys)["path"] == path
    assert {"mine", "beside_me"}.isdisjoint(set(sys.modules) - names)
    assert not list(tmp_path.rglob("*.pyc"))


def test_two_folders_have_each_their_own_helpers(tmp_path: Path) -> None:
    for name in ("one", "two"):
        module(tmp_path / name, "mine.py", "import beside_me\nload = beside_me.load\n")
        module(tmp_path / name, "beside_me.py", SAYS.format(name))
    found = [load(located("mine:load", tmp_path / name))() for name in ("one", "two", "one")]
    assert found == ["one", "two", "one"]


def test_an_edited_module_is_read_again(tmp_path: Path) -> None:
    for word in ("before", "after!"):
        module(tmp_path, "mine.py", SAYS.format(word))
        assert load(located("mine:load", tmp_path))() == word


def test_what_the_caller_imported_stays_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, "mine.py", SAYS.format("mine"))
    other = type(sys)("mine")
    monkeypatch.setitem(sys.modules, "mine", other)
    assert load(located("mine:load", tmp_path))() == "mine"
    assert sys.modules["mine"] is other


def test_packages_and_their_parts(tmp_path: Path) -> None:
    module(tmp_path, "pack/__init__.py", "")
    module(tmp_path, "pack/part.py", "from . import other\nload = other.load\n")
    module(tmp_path, "pack/other.py", SAYS.format("other"))
    assert load(located("pack.part:load", tmp_path))() == "other"


@every("what", ["file", "folder", "init"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, what: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    outside = module(tmp_path / "outside", "pack/mine.py", SAYS.format("outside"))
    module(tmp_path / "outside", "pack/__init__.py", "")
    match what:
        case "file":
            (home / "pack").mkdir()
            (home / "pack" / "mine.py").symlink_to(outside)
        case "folder":
            (home / "pack").symlink_to(outside.parent)
        case _:
            module(home, "pack/mine.py", SAYS.format("inside"))
            (home / "pack" / "__init__.py").symlink_to(outside.parent / "__init__.py")
    with pytest.raises(ConfigError, match="outside of its folder"):
        located("pack.mine:load", home)


def test_code_elsewhere_on_the_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path / "elsewhere", "strangers.py", "raise RuntimeError('run')\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    for home in (None, tmp_path):
        with pytest.raises(ConfigError, match=r"strangers.py, .*neither"):
            located("strangers:load", home)


@every(
    "name", ["..mine:load", "/etc/mine:load", "mine", "mine:", "mine:load()", "a b:c", "mine:load\n", "C:\\x"]
)
def test_what_is_no_name_of_code(name: str, tmp_path: Path) -> None:
    assert not names_code(name)
    with pytest.raises(ConfigError, match="Expected code as"):
        located(name, tmp_path)


@every("name", ["os:system", "subprocess:run", "builtins:eval", "__main__:load"])
def test_the_standard_library_is_no_package_of_anybody(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got none"):
        located(name, tmp_path)


def test_an_installed_package_is_found_and_its_name_is_its_own(tmp_path: Path) -> None:
    with installed(tmp_path / "site", {"their_data.py": SAYS.format("theirs")}, {}):
        place = located("their_data:load", None)
        assert place.own is None
        assert load(place)() == "theirs"
        module(tmp_path / "home", "their_data.py", SAYS.format("mine"))
        with pytest.raises(ConfigError, match="another name"):
            located("their_data:load", tmp_path / "home")


def test_a_module_of_python_is_not_replaced(tmp_path: Path) -> None:
    module(tmp_path, "json.py", SAYS.format("mine"))
    with pytest.raises(ConfigError, match="another name"):
        located("json:load", tmp_path)


def test_a_missing_name_is_told_with_the_nearest(tmp_path: Path) -> None:
    module(tmp_path, "mine.py", SAYS.format("mine"))
    with pytest.raises(ConfigError, match="did you mean `load`"):
        load(located("mine:laod", tmp_path))
