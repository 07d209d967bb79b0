"""Other users of a machine cannot name code for a study, change its code, or have it imported by a look."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from support.command_line import said
from support.every import every
from support.own_study import NET, folder
from support.tiny_study import FEDAVG, text

from securefl.core.errors import ConfigError
from securefl.deployment.folder import PartyOptions, init
from securefl.deployment.party_setup import PartyStudy
from securefl.storage.own_code import load
from securefl.study.config import HOME, note_home, origin_of, read
from securefl.study.folder import claim, study_of
from securefl.study.interruption import Told
from securefl.study.own_code import model_code, require_no_code, told
from securefl.study.session import reopen, run_study
from securefl.sweep.run import error_of_cell, ordered, place_of

MALLORY = 54340
root = pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user or group")
MARK = "from pathlib import Path\nPath({!r}).touch()\n"


def named(where: Path) -> Path:
    """A study in this folder that names its model's code, which leaves a mark as it is imported."""
    path = folder(where, rounds=1)
    (where / "net.py").write_text(MARK.format(str(where.parent / "ran")) + NET, encoding="utf-8")
    return path


def ran(where: Path) -> bool:
    """Whether the code was imported since the last question."""
    mark = where.parent / "ran"
    before = mark.exists()
    mark.unlink(missing_ok=True)
    return before


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        told(read(path))
    return str(caught.value)


def imported(path: Path) -> None:
    place = model_code(read(path))
    assert place is not None
    load(place)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def as_user(user: int, group: int, code: str) -> int:
    """The exit code of Python code that runs as another user."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            exec(code, {"os": os})
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# What names code ------------------------------------------------------------------------------------------


@root
@every("mask", [0o000, 0o002, 0o022, 0o077])
def test_a_relay_of_the_folders_group_cannot_write_what_names_code(mask: int, tmp_path: Path) -> None:
    """A party's group may pass through its folder. Under umask 002 it could write `home.txt`."""
    home, party = tmp_path / "study", tmp_path / "made" / "party"
    path = named(home)
    with umask(mask):
        claim(party, read(path))
    for one in (tmp_path, *tmp_path.parents[:2]):
        one.chmod(one.stat().st_mode | 0o011)
    for one in (party.parent, party, *party.iterdir()):
        os.chown(one, 0, MALLORY)
    assert stat.S_IMODE((party / HOME).stat().st_mode) == 0o600
    for name in (HOME, "study.toml"):
        assert as_user(MALLORY + 1, MALLORY, f"open({str(party / name)!r}, 'r+')") == 1
    assert as_user(MALLORY + 1, MALLORY, f"os.rename({str(party)!r}, {str(party)!r} + '2')") == 1
    assert told(study_of(party))
    imported(party / "study.toml")


@root
def test_a_note_of_another_user_in_a_sticky_folder_names_no_code(tmp_path: Path) -> None:
    """A study of root in a folder such as /tmp, and beside it a `home.txt` that leads to Mallory's code."""
    shared, theirs = tmp_path / "shared", tmp_path / "mallory"
    named(theirs)
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / "study.toml"
    shutil.copy(theirs / "study.toml", path)
    for content in (f"{theirs}\n", f"{theirs}\nmade in folder {shared.stat().st_ino}\n"):
        (shared / HOME).write_text(content)
        (shared / HOME).chmod(0o600)
        for one in (shared / HOME, theirs, *theirs.iterdir()):
            os.chown(one, MALLORY, MALLORY)
        planned = said("plan", path)
        assert not ran(theirs)
        assert planned.exit_code == 1
        assert str(shared / HOME) in str(planned.exception)


@every("mode", [0o600, 0o644])
def test_a_note_that_the_program_did_not_write_in_this_folder_is_none(mode: int, tmp_path: Path) -> None:
    home, other = tmp_path / "study", tmp_path / "other"
    path = named(home)
    other.mkdir()
    shutil.copy(path, other / "study.toml")
    for content in (f"{home}\n", f"{home}\nmade in folder 1\n"):
        (other / HOME).write_text(content)
        (other / HOME).chmod(mode)
        assert HOME in refused(other / "study.toml")
    (other / HOME).unlink()
    note_home(other, home)
    assert origin_of(other / "study.toml")[0] == home
    (other / HOME).rename(tmp_path / "kept")
    (other / HOME).symlink_to(tmp_path / "kept")
    assert HOME in refused(other / "study.toml")


def test_a_run_folder_that_came_by_mail_names_no_code_until_its_receiver_says_so(tmp_path: Path) -> None:
    """An archive keeps modes and contents. It cannot keep the number of the folder that it is unpacked to."""
    home, out, came = tmp_path / "study", tmp_path / "run", tmp_path / "came"
    path = named(home)
    run_study(read(path), out, lambda *_: None)
    assert ran(home)
    shutil.copytree(out, came)
    assert stat.S_IMODE((came / HOME).stat().st_mode) == 0o600
    for words in (("report", came), ("export", came, "-o", tmp_path / "m.safetensors"), ("plan", came)):
        assert said(*words).exit_code == 1
    assert "copied" in refused(came / "study.toml")
    assert not ran(home)
    # Each remedy: trust for one run; the study's own file, which notes its folder anew; without the note.
    assert told(read(came / "study.toml", [came]))[1].startswith("Trusted for this run")
    with pytest.raises(ConfigError, match="--run-code"):
        reopen(came, trusted=[came])
    assert not ran(home)
    claim(came, read(path))  # as `run` and `sweep` do
    assert told(read(came / "study.toml"))
    shutil.copytree(home, came, dirs_exist_ok=True)
    shutil.copy(out / HOME, came / HOME)
    assert HOME in refused(came / "study.toml")
    (came / HOME).unlink()
    assert told(read(came / "study.toml"))


# The code, and the way to it ------------------------------------------------------------------------------


def sticky(home: Path) -> None:
    home.chmod(0o1777)


BAD = {
    "a study that others can write": ("study.toml", 0o666),
    "code that others can write": ("net.py", 0o646),
    "code that a group can write": ("net.py", 0o664),
    "a folder that others can write": (".", 0o777),
    "a folder on the way that a group can write": ("..", 0o775),
}


@pytest.mark.parametrize("bad", [pytest.param(one, marks=[root] if "group" in one else []) for one in BAD])
def test_each_remedy_that_a_refusal_names_works(bad: str, tmp_path: Path) -> None:
    name, mode = BAD[bad]
    path = named(tmp_path / "way" / "study")
    place = (path.parent / name).resolve()
    if "group" in bad:
        os.chown(place, -1, 12345)
    place.chmod(mode)
    why = refused(path)
    assert str(place) in why
    found = re.search(r"--trust-code (\S+)", why)
    assert found is not None
    (trusted,) = shlex.split(found[1])
    lines = told(read(path, [Path(trusted)]))
    assert [line for line in lines if "--trust-code" in line and str(place) in line]
    found_code = model_code(read(path, [Path(trusted)]))
    assert found_code is not None
    load(found_code)
    found = re.search(r"(chmod go-w \S+)", why)
    assert found is not None
    subprocess.run(shlex.split(found[1]), check=True)
    assert stat.S_IMODE(place.stat().st_mode) == mode & ~0o022
    imported(path)


@root
def test_a_checkout_of_another_user_and_its_remedies(tmp_path: Path) -> None:
    """A container runs as root, and the checkout that is mounted into it is another user's."""
    path = named(tmp_path / "mounted")
    for one in (path.parent, *path.parent.iterdir()):
        os.chown(one, MALLORY, MALLORY)
    why = refused(path)
    assert said("plan", path, "--trust-code", path.parent).exit_code == 0
    assert ran(path.parent)
    found = re.search(r"as root: (chown \d+ \S+)", why)
    assert found is not None
    subprocess.run(shlex.split(found[1]), check=True)
    assert refused(path) != why, "the next entry"


@root
def test_a_study_behind_a_symbolic_link_of_another_user(tmp_path: Path) -> None:
    path = named(tmp_path / "study")
    (tmp_path / "shared").mkdir()
    sticky(tmp_path / "shared")
    link = tmp_path / "shared" / "link"
    link.symlink_to(path.parent)
    imported(link / "study.toml")
    os.lchown(link, MALLORY, MALLORY)
    assert str(link) in refused(link / "study.toml")
    assert told(read(link / "study.toml", [path.parent]))


@root
@every("kind", ["module", "package", "namespace", "link", "second name", "no source"])
def test_a_helper_of_another_user_in_a_sticky_folder_is_not_imported(kind: str, tmp_path: Path) -> None:
    """The study's code is its owner's. What it imports could be what another user put beside it."""
    home, theirs = tmp_path / "study", tmp_path / "theirs"
    path = named(home)
    sticky(home)
    code = MARK.format(str(tmp_path / "helper ran"))
    (home / "net.py").write_text("import beside_me\n" + NET)
    theirs.mkdir()
    (theirs / "inner.py").write_text(code)
    match kind:
        case "module":
            (home / "beside_me.py").write_text(code)
            os.chown(home / "beside_me.py", MALLORY, MALLORY)
        case "package" | "namespace":
            (home / "beside_me").mkdir()
            (home / "beside_me" / ("__init__.py" if kind == "package" else "inner.py")).write_text(code)
            os.chown(home / "beside_me", MALLORY, MALLORY)
            (home / "net.py").write_text("import beside_me.inner\n" * (kind == "namespace") + NET)
            if kind == "package":
                (home / "net.py").write_text("import beside_me\n" + NET)
        case "link":
            (home / "beside_me.py").symlink_to(theirs / "inner.py")
            os.lchown(home / "beside_me.py", MALLORY, MALLORY)
        case "second name":
            os.link(theirs / "inner.py", home / "beside_me.py")
        case _:
            py_compile.compile(str(theirs / "inner.py"), cfile=str(home / "beside_me.pyc"))
            os.chown(home / "beside_me.pyc", MALLORY, MALLORY)
    with pytest.raises(ConfigError, match="beside_me"):
        imported(path)
    assert not (tmp_path / "helper ran").exists()


@every("helper", [False, True])
def test_bytecode_that_another_user_planted_is_not_run(helper: bool, tmp_path: Path) -> None:
    """Python makes `__pycache__` under the umask. Its files are believed by size and time of the source."""
    path = named(tmp_path / "study")
    source = path.parent / ("beside_me.py" if helper else "net.py")
    if helper:
        source.write_text("")
        (path.parent / "net.py").write_text("import beside_me\n" + NET)
    evil = tmp_path / "evil.py"
    evil.write_text(MARK.format(str(tmp_path / "cache ran")))
    pad = "#" * (evil.stat().st_size - source.stat().st_size)
    source.write_text(source.read_text() + pad)
    evil.write_text(evil.read_text() + "#" * (source.stat().st_size - evil.stat().st_size))
    os.utime(evil, ns=(source.stat().st_mtime_ns, source.stat().st_mtime_ns))
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir()
    cached.parent.chmod(0o777)
    py_compile.compile(str(evil), cfile=str(cached))
    imported(path)
    assert not (tmp_path / "cache ran").exists()
    assert not list(path.parent.glob("*.pyc"))


def test_what_stands_beside_the_code_and_is_no_module_of_it_is_not_run(tmp_path: Path) -> None:
    path = named(tmp_path / "study")
    code = MARK.format(str(tmp_path / "beside ran"))
    for name in ("conftest.py", "sitecustomize.py", "usercustomize.py", "__init__.py", "__main__.py"):
        (path.parent / name).write_text(code)
    (path.parent / "own.pth").write_text("import conftest\n")
    shutil.make_archive(str(path.parent / "numpy"), "zip", path.parent, "conftest.py")
    imported(path)
    assert not (tmp_path / "beside ran").exists()


def test_a_folder_that_is_earlier_on_pythonpath_does_not_take_the_place_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = named(tmp_path / "study")
    early = tmp_path / "early"
    early.mkdir()
    early.chmod(0o777)
    (early / "net.py").write_text(MARK.format(str(tmp_path / "early ran")))
    monkeypatch.syspath_prepend(early)
    imported(path)
    assert not (tmp_path / "early ran").exists()


def test_a_folder_of_data_does_not_hide_an_installed_package(tmp_path: Path) -> None:
    path = named(tmp_path / "study")
    (path.parent / "json").mkdir()
    (path.parent / "yaml").mkdir()
    (path.parent / "net.py").write_text("import json, yaml\nassert json.loads and yaml.safe_load\n" + NET)
    for name in ("json", "yaml"):
        sys.modules.pop(name, None)
    imported(path)


# Looks ------------------------------------------------------------------------------------------------------


def test_report_export_and_compare_import_no_code_unless_they_are_told(tmp_path: Path) -> None:
    home, out = tmp_path / "study", tmp_path / "run"
    path = named(home)
    run_study(read(path), out, lambda *_: None)
    assert ran(home)
    shutil.copytree(out, tmp_path / "second")
    model = tmp_path / "m.safetensors"
    for words in (("report", out), ("export", out, "-o", model)):
        done = said(*words)
        assert done.exit_code == 1
        assert "--run-code" in str(done.exception)
        assert f"net:Net in {home / 'net.py'}" in str(done.exception)
        assert not ran(home)
    assert said("export", out, "-o", model, "--run-code").exit_code == 0
    assert ran(home)
    assert said("compare", out, tmp_path / "second").exit_code == 0
    assert not ran(home)
    assert model.is_file()


def test_a_run_without_code_needs_no_word(tmp_path: Path) -> None:
    """A lab's group may write a study that names no code, and the folders of its runs."""
    path, out = tmp_path / "study" / "study.toml", tmp_path / "run"
    path.parent.mkdir()
    path.write_text(text(FEDAVG, rounds=1))
    path.chmod(0o666)
    claim(out, read(path))
    for one in (out, out / "study.toml", path.parent):
        one.chmod(0o777)
    require_no_code(study_of(out), run_code=False)
    assert told(study_of(out)) == []


@every("swept", [False, True])
def test_a_plan_without_code_only_looks(swept: bool, tmp_path: Path) -> None:
    home = tmp_path / "study"
    path = named(home)
    if swept:
        path.write_text(path.read_text() + '\n[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n')
    looked = said("plan", path, "--without-code")
    assert looked.exit_code == 0
    assert f"The model comes from net:Net in {home / 'net.py'} (SHA-256 " in looked.output
    (home / "net.py").chmod(0o666)
    looked = said("plan", path, "--without-code", "--json")
    assert looked.exit_code == 0
    assert "Refused: " in looked.output
    assert not ran(home)
    path.write_text(text(FEDAVG, rounds=1))
    assert "epsilon" in said("plan", path, "--without-code").output, "a study without code is planned"


# Other processes, and copies that the program makes ---------------------------------------------------------


def test_a_worker_is_given_what_its_sweep_was_told_to_trust(tmp_path: Path) -> None:
    path = named(tmp_path / "study")
    (path.parent / "net.py").chmod(0o666)
    said = []
    for number, trusted in enumerate(([], [path.parent])):
        of = read(path, trusted)
        out = tmp_path / f"cell {number}"
        said.append(
            error_of_cell(
                out, partial(ordered, of.text, place_of(of)), lambda done: None, Told(lambda: False)
            )
        )
    assert "chmod go-w" in str(said[0])
    assert said[1] is None


def test_a_party_opens_code_under_the_rule(tmp_path: Path) -> None:
    path = named(tmp_path / "study")
    of = read(path)
    made = PartyStudy.of(of, of.arms[0], of.study.seeds[0])
    part = PartyOptions(
        name="client-0000", arm=of.arms[0], seed=of.study.seeds[0], counter=tmp_path / "counter"
    )
    init(tmp_path / "party", made, part)
    assert stat.S_IMODE((tmp_path / "party" / HOME).stat().st_mode) == 0o600
    (path.parent / "net.py").chmod(0o666)
    assert "chmod go-w" in refused(tmp_path / "party" / "study.toml")


def test_a_note_beside_a_study_without_code_speaks_of_no_code(tmp_path: Path) -> None:
    """The remedies are in the message: the note removed, or the study run again."""
    (tmp_path / "study.toml").write_text("")
    (tmp_path / HOME).write_text("/elsewhere\nmade in folder 0\n")
    (tmp_path / HOME).chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        origin_of(tmp_path / "study.toml")[0]
    assert "code as it is" not in str(caught.value)
    assert all(word in str(caught.value) for word in (f"remove {HOME}", "--out", "--trust-code"))
