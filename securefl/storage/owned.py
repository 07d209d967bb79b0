"""The rule for what others must not change: a file that names code, the code itself, the way to a socket.

It is OpenSSH's (`StrictModes`), with sticky folders. Each folder and link on the way, and what stands at its
end, belongs to the user or to root, and nobody else can write a folder or a file:

    writable by its group     refused, unless it is the owner's private group: it has the owner's name and
                              number, and no other member. An access list (ACL) is another member.
    writable by everybody     refused
    a sticky folder           passes, such as /tmp: others can make entries in it, and change only their own.
                              A file in it with a second name is refused: others can link to a file of ours.

If a path passes, only the user and root could have put there what is found there, and only they can replace
it. `--trust-code PATH` lets a path pass for one run.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from securefl.core.errors import ConfigError, SecureFLError, of_another_version
from securefl.core.formats import VERSION, first_line, version_in
from securefl.storage.inputs import kind_word, opened, shown

ROOT: Final = 0
_ROOT_FOLDER: Final = Path("/")
_ACCESS_LIST: Final = "system.posix_acl_access"
_MOST_LINKS: Final = 40


def ours() -> frozenset[int]:
    """The users who may name code here: this process's user, and root."""
    return frozenset({ROOT, os.geteuid()})


def walked(path: Path, users: frozenset[int], close: frozenset[int] | None = None) -> os.stat_result:
    """Walk from the root to what stands at the end of `path`, through every link on the way.

    close: the users who may have made an entry of a sticky folder, by default `users`.

    Raises ConfigError, with the entry and what to do, if another than one of `users` can change what is found
    there, and OSError if there is nothing.
    """
    here, rest, links = _ROOT_FOLDER, list(path.absolute().parts[1:]), 0
    found, sticky = here.lstat(), _folder(here, here.lstat(), users)
    while rest:
        name = rest.pop(0)
        # `here` was reached without a link, so its parent was checked on the way.
        entry = here.parent if name == ".." else here / name
        found = entry.lstat()
        _require_owner(entry, found, (close or users) if sticky and name != ".." else users)
        if stat.S_ISDIR(found.st_mode):
            here, sticky = entry, _folder(entry, found, users)
            continue
        if sticky and found.st_nlink > 1:
            raise ConfigError(
                f"Expected a file with one name in {shown(here)}, where every user may make entries, got "
                f"{shown(entry)} with {found.st_nlink}: another user may have linked it there. Move it to a "
                "folder that its owner alone may write."
            )
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise ConfigError(
                    f"Expected at most {_MOST_LINKS} links on the way, got more at {shown(entry)}."
                )
            target = Path(os.readlink(entry))
            rest = [part for part in target.parts if part != "/"] + rest
            if target.is_absolute():
                here, sticky = _ROOT_FOLDER, _folder(_ROOT_FOLDER, _ROOT_FOLDER.lstat(), users)
        elif rest:
            raise ConfigError(
                f"Expected a folder at {shown(entry)}, got {kind_word(found.st_mode)}. Check the path."
            )
        elif stat.S_ISREG(found.st_mode):
            _require_own_writer(entry, found)
    return here.lstat() if stat.S_ISLNK(found.st_mode) else found


def require_ours(path: Path) -> None:
    """Raises ConfigError if what stands at `path`, if anything, belongs to another than the user or root."""
    if path.exists():
        _require_owner(path, path.stat(), ours())


def reason(path: Path, opened: os.stat_result | None = None) -> str:
    """Why others could have written what stands at `path`; "" if they could not.

    opened: what was opened at `path`. Raises OSError if there is nothing.
    """
    try:
        found = walked(path, ours())
    except ConfigError as error:
        return str(error)
    if opened is not None and not os.path.samestat(found, opened):
        return f"Expected {shown(path)} to stay, got a file in its place. Run the same command again."
    return ""


def allowed(
    why: str,
    path: Path,
    trusted: Sequence[Path],
    opened: os.stat_result | None = None,
    *,
    what: str = "the code",
) -> str:
    """`why`, if it is empty or one of the `trusted` paths is `path` or a folder of it.

    opened: what was opened at `path`, which a link on the way may have led elsewhere meanwhile.
    what: is taken as it is by --trust-code, for the message.

    Raises ConfigError, with --trust-code, for any other reason.
    """
    real = path.resolve()
    if not why:
        return why
    if any(real.is_relative_to(own.resolve()) for own in trusted):
        if opened is None or os.path.samestat(real.lstat(), opened):
            return why
        raise ConfigError(
            f"Expected {shown(path)} to lead to the trusted {shown(real)}, got a file elsewhere when it "
            "was opened: a link on the way changed. Name the file or folder itself, not the link."
        )
    sticky = real.parent.lstat().st_mode & stat.S_ISVTX
    place = shlex.quote(str(real if sticky else real.parent))
    raise ConfigError(f"{why} - or, to take {what} as it is for one run: --trust-code {place}")


def require(path: Path, trusted: Sequence[Path] = ()) -> str:
    """Raises ConfigError if others can write what stands at `path`, and it is not below a `trusted` path.

    Returns why it needs trust, or "". Raises OSError if there is nothing.
    """
    return allowed(reason(path), path, trusted)


def read(path: Path, trusted: Sequence[Path] = ()) -> bytes:
    """The content of a file, after `require`. What is checked is what was opened."""
    with opened(path) as source:
        found = os.fstat(source.fileno())
        allowed(reason(path, found), path, trusted, found)
        return source.read()


def secret(
    path: Path,
    count: int,
    *,
    lost: str,
    seen: str,
    error: type[SecureFLError],
    kind: str = "",
    anew: str = "",
) -> bytes:
    """The `count` bytes of a file that its owner alone can read.

    lost, seen: what follows from a lost or damaged file, and from one that others can read, and what to do.
    kind: the kind in the file's first line, which is not returned; "" for a file without one. anew: what to
    do with a file of another version.
    Raises `error` for any other file, and for a link.
    """
    head = first_line(kind) if kind else b""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as cause:
        raise error(f"Expected {count} secret bytes in {path}, got {cause.strerror}: {lost}") from None
    with os.fdopen(number, "rb") as source:
        mode = os.fstat(source.fileno()).st_mode & 0o777
        raw = source.read(len(head) + count + 1)
    if mode & 0o077:
        raise error(f"Expected {path} for its owner alone, got mode {mode:04o}: {seen}")
    if not raw.startswith(head):
        raise error(of_another_version(f"{path} as {kind} of version {VERSION}", version_in(raw), anew))
    raw = raw.removeprefix(head)
    if len(raw) != count:
        raise error(f"Expected {count} bytes in {path}, got {len(raw)} or more, so it is damaged: {lost}")
    return raw


def _folder(folder: Path, found: os.stat_result, users: frozenset[int]) -> bool:
    """Check a folder. Returns whether others may make entries in it, and change only their own."""
    _require_owner(folder, found, users)
    sticky = bool(found.st_mode & stat.S_ISVTX and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    if not sticky:
        _require_own_writer(folder, found)
    return sticky


def _require_owner(entry: Path, found: os.stat_result, users: frozenset[int]) -> None:
    if found.st_uid not in users:
        raise ConfigError(
            f"Expected {shown(entry)} to belong to user {names(users)}, got user {found.st_uid}, who can put "
            f"something else there. Take another path, or as root: chown {os.geteuid()} "
            f"{shlex.quote(str(entry))}"
        )


def _require_own_writer(entry: Path, found: os.stat_result) -> None:
    """Raises ConfigError if another than the owner can write a folder or file."""
    mode = found.st_mode
    private = bool(mode & stat.S_IWGRP) and _is_private(found) and not _has_access_list(entry)
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not private):
        raise ConfigError(
            f"Expected {shown(entry)} to be writable by its owner alone, got mode "
            f"{stat.S_IMODE(mode):04o} and group {found.st_gid}: others can put something else there. "
            f"Mend it: chmod go-w {shlex.quote(str(entry))}"
        )


def _is_private(found: os.stat_result) -> bool:
    """Whether the group has the owner's name and number, and no other member."""
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    # A directory service may not list all users of a group: there the name alone tells a private one.
    return (
        (owner.pw_gid, owner.pw_name) == (group.gr_gid, group.gr_name)
        and set(group.gr_mem) <= {owner.pw_name}
        and all(user.pw_uid == owner.pw_uid for user in pwd.getpwall() if user.pw_gid == group.gr_gid)
    )


def _has_access_list(path: Path) -> bool:
    # Its mask stands in the place of the group's bits, so a member of the list may write.
    try:
        return bool(os.getxattr(path, _ACCESS_LIST))
    except (OSError, AttributeError):  # none, or a system without them
        return False


def names(users: frozenset[int]) -> str:
    """The numbers of users, in words."""
    return " or ".join(map(str, sorted(users)))
