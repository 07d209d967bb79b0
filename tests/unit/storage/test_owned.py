"""Who may change what names code, or is code: the rule, over a file system and users of its own."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.storage import owned

ROOT, US, MALLORY = 0, 1001, 1003
FOLDER, FILE, LINK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK
CODE = "/home/us/study/net.py"
PAGE = Path(__file__).parents[3] / "docs" / "threat-model.md"
LAB, EMPTY = 500, 501
"""A group with two members, and one that nobody is known to be in."""


def entry(kind: int, mode: int, user: int, group: int = LAB, names: int = 1, target: str = "") -> Any:
    return SimpleNamespace(
        st_mode=kind | mode, st_uid=user, st_gid=group, st_nlink=names, st_ino=1, st_dev=1, target=target
    )


Disk = dict[str, Any]


def good() -> Disk:
    return {
        "/": entry(FOLDER, 0o755, ROOT),
        "/home": entry(FOLDER, 0o755, ROOT),
        "/home/us": entry(FOLDER, 0o755, US),
        "/home/us/study": entry(FOLDER, 0o755, US),
        CODE: entry(FILE, 0o644, US),
        "/tmp": entry(FOLDER, 0o1777, ROOT),
    }


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    entries = good()
    users = {
        ROOT: SimpleNamespace(pw_uid=ROOT, pw_name="root", pw_gid=0),
        US: SimpleNamespace(pw_uid=US, pw_name="us", pw_gid=US),
        MALLORY: SimpleNamespace(pw_uid=MALLORY, pw_name="mallory", pw_gid=LAB),
    }
    groups = {
        US: SimpleNamespace(gr_gid=US, gr_name="us", gr_mem=[]),
        LAB: SimpleNamespace(gr_gid=LAB, gr_name="lab", gr_mem=["us"]),
        EMPTY: SimpleNamespace(gr_gid=EMPTY, gr_name="empty", gr_mem=[]),
    }

    def lstat(path: Path) -> Any:
        if str(path) not in entries:
            raise FileNotFoundError(2, "No such file", str(path))
        return entries[str(path)]

    monkeypatch.setattr(Path, "lstat", lstat)
    monkeypatch.setattr(os, "readlink", lambda path: entries[str(path)].target)
    monkeypatch.setattr(os, "geteuid", lambda: US)
    monkeypatch.setattr(pwd, "getpwuid", users.__getitem__)
    monkeypatch.setattr(pwd, "getpwall", lambda: list(users.values()))
    monkeypatch.setattr(grp, "getgrgid", groups.__getitem__)
    return entries


def private(disk: Disk) -> None:
    disk["/home/us/study"] = entry(FOLDER, 0o2775, US, group=US)
    disk[CODE] = entry(FILE, 0o664, US, group=US)


def below_tmp(user: int, names: int = 1) -> Callable[[Disk], None]:
    def change(disk: Disk) -> None:
        disk["/home/us"] = entry(LINK, 0o777, US, target="/tmp")
        disk["/tmp/study"] = entry(FOLDER, 0o1777, ROOT)
        disk["/tmp/study/net.py"] = entry(FILE, 0o644, user, names=names)

    return change


def put(path: str, what: Any) -> Callable[[Disk], None]:
    return lambda disk: disk.__setitem__(path, what)


CASES: dict[str, tuple[Callable[[Disk], None], bool]] = {
    "of the user or of root, and writable by its owner alone": (lambda disk: None, True),
    "a folder on the way of root": (put("/home/us", entry(FOLDER, 0o755, ROOT)), True),
    "writable by a group with other members": (put(CODE, entry(FILE, 0o664, US, group=LAB)), False),
    "writable by a group without the owner's name": (put(CODE, entry(FILE, 0o664, US, group=EMPTY)), False),
    "writable by the owner's private group": (private, True),
    "writable by everybody": (put(CODE, entry(FILE, 0o646, US)), False),
    "a folder on the way that its group can write": (put("/home/us", entry(FOLDER, 0o775, US)), False),
    "a folder on the way that everybody can write": (put("/home/us", entry(FOLDER, 0o757, US)), False),
    "of another user": (put(CODE, entry(FILE, 0o644, MALLORY)), False),
    "a folder on the way of another user": (put("/home", entry(FOLDER, 0o755, MALLORY)), False),
    "in a sticky folder, of the user": (below_tmp(US), True),
    "in a sticky folder, of another user": (below_tmp(MALLORY), False),
    "in a sticky folder, of the user, with a second name": (below_tmp(US, names=2), False),
    "a sticky folder of another user": (put("/home/us/study", entry(FOLDER, 0o1755, MALLORY)), False),
    "behind a symbolic link of the user": (
        lambda disk: disk.update(
            {
                "/home/us/study": entry(LINK, 0o777, US, target="../us/./real"),
                "/home/us/real": entry(FOLDER, 0o755, US),
                "/home/us/real/net.py": entry(FILE, 0o644, US),
            }
        ),
        True,
    ),
    "behind a symbolic link of another user": (
        lambda disk: disk.update(
            {
                "/home/us/study": entry(LINK, 0o777, MALLORY, target="/home/us/real"),
                "/home/us/real": entry(FOLDER, 0o755, US),
                "/home/us/real/net.py": entry(FILE, 0o644, US),
            }
        ),
        False,
    ),
}
"""The two lists of docs/threat-model.md: what is found, and whether it may name code, or be code."""


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case: str, disk: Disk) -> None:
    change, passes = CASES[case]
    change(disk)
    assert (owned.reason(Path(CODE)) == "") is passes


def test_the_page_has_the_rule() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("<!-- who may name code -->\n")[2]
    lists = " ".join(text.partition("<!-- end of")[0].split()).split("- **")[1:]
    found = {
        what: words.startswith("passes")
        for words in lists
        for what in words.split(":** ")[1].strip().split("; ")
    }
    assert found == {case: passes for case, (_, passes) in CASES.items()}


def test_an_access_list_is_another_member_of_a_private_group(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(disk)
    lists = {CODE: b"\2\0\0\0"}

    def getxattr(path: Path, name: str) -> bytes:
        if (name, str(path)) != ("system.posix_acl_access", CODE) or not lists:
            raise OSError(61, "No data available")
        return lists[CODE]

    monkeypatch.setattr(os, "getxattr", getxattr, raising=False)
    assert "chmod go-w" in owned.reason(Path(CODE))
    disk[CODE].st_mode &= ~0o020  # what the remedy does: the list's mask goes with the group's bit
    assert owned.reason(Path(CODE)) == ""


@every(
    ("group", "others"),
    [
        ("us", [SimpleNamespace(pw_uid=9, pw_name="nine", pw_gid=US)]),
        ("wheel", []),
    ],
)
def test_a_group_is_private_by_name_and_number(group: str, others: list[Any]) -> None:
    own = SimpleNamespace(pw_uid=US, pw_name="us", pw_gid=US)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pwd, "getpwuid", lambda user: own)
        patch.setattr(pwd, "getpwall", lambda: [own, *others])
        patch.setattr(
            grp, "getgrgid", lambda number: SimpleNamespace(gr_gid=US, gr_name=group, gr_mem=["us"])
        )
        assert not owned._is_private(entry(FILE, 0o664, US, group=US))


def test_dots_lead_through_the_folders_that_were_checked(disk: Disk) -> None:
    path = Path("/home/us/study/../study/./net.py")
    assert owned.reason(path) == ""
    disk["/home/us"] = entry(FOLDER, 0o775, US)
    assert "chmod go-w /home/us" in owned.reason(path)


def test_links_in_a_circle_end(disk: Disk) -> None:
    disk["/home/us/study"] = entry(LINK, 0o777, US, target="../us/study")
    assert "at most 40 links" in owned.reason(Path(CODE))


def test_a_trusted_path_passes_with_what_is_below_it_alone(tmp_path: Path) -> None:
    (tmp_path / "lab" / "inner").mkdir(parents=True)
    code = tmp_path / "lab" / "inner" / "net.py"
    code.write_text("x = 1\n")
    (tmp_path / "lab").chmod(0o777)
    with pytest.raises(ConfigError, match="--trust-code"):
        owned.require(code)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "lab")
    for trusted in (tmp_path / "lab", code.parent, code, link, link / ".." / "lab"):
        assert "chmod go-w" in owned.require(code, [trusted])
    for other in (tmp_path / "la", tmp_path / "lab" / "inn", code / "deeper"):
        with pytest.raises(ConfigError, match="--trust-code"):
            owned.require(code, [other])


def test_what_is_read_is_what_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, other = tmp_path / "net.py", tmp_path / "other.py"
    code.write_text("own = 1\n")
    other.write_text("other = 1\n")
    assert owned.read(code) == b"own = 1\n"
    walked = owned.walked

    def swapped(path: Path, users: frozenset[int]) -> os.stat_result:
        other.replace(code)
        return walked(path, users)

    monkeypatch.setattr(owned, "walked", swapped)
    with pytest.raises(ConfigError, match="to stay"):
        owned.read(code)


@every("change", [0o640, 0o604, "short", "long", "lost", "link"])
def test_a_secret_is_its_owners_alone_and_whole(change: int | str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    owned_by = {"lost": "LOST", "seen": "SEEN"}
    path.write_bytes(bytes(32))
    path.chmod(0o600)
    assert owned.secret(path, 32, **owned_by, error=DataError) == bytes(32)
    match change:
        case int():
            path.chmod(change)
        case "short" | "long":
            path.write_bytes(bytes(31 if change == "short" else 33))
        case "lost":
            path.unlink()
        case _:
            path.rename(tmp_path / "real")
            path.symlink_to(tmp_path / "real")
    with pytest.raises(DataError, match="SEEN" if isinstance(change, int) else "LOST"):
        owned.secret(path, 32, **owned_by, error=DataError)


def test_what_was_opened_is_what_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that others can change led elsewhere while it was opened."""
    trusted, theirs, shared = tmp_path / "trusted", tmp_path / "theirs", tmp_path / "shared"
    for folder in (trusted, theirs, shared):
        folder.mkdir()
        (folder / "net.py").write_text(f"# {folder.name}")
    shared.chmod(0o777)
    link = shared / "study"
    link.symlink_to(trusted)
    assert owned.read(link / "net.py", [trusted]) == b"# trusted"
    link.unlink()
    link.symlink_to(theirs)
    reason: Callable[..., str] = owned.reason

    def meanwhile(*given: object) -> str:
        link.unlink()
        link.symlink_to(trusted)
        return reason(*given)

    monkeypatch.setattr(owned, "reason", meanwhile)
    with pytest.raises(ConfigError, match="opened"):
        owned.read(link / "net.py", [trusted])
