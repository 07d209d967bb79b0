"""`keygen` on a full or failing disk: a whole pair of keys, or nothing at all."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.every import every
from support.matching_place import call
from support.started import Started

from securefl.commands.main import cli
from securefl.matching import ClientKey, ClientPublic, document
from securefl.matching.evaluator import Evaluator
from securefl.matching.key_holder import KeyHolder
from securefl.matching.keys import EvaluatorPublic, PublicKeys
from securefl.storage import files

ROLES = {
    "key-holder": (("secret.key", "secret-key"), ("public.key", "public-key")),
    "evaluator": (("evaluator.key", "evaluator-key"), ("evaluator.pub", "evaluator-public")),
    "client": (("client.key", "client-key"), ("client.pub", "client-public")),
}
OWNERS: dict[str, tuple[Any, Any]] = {
    "key-holder": (KeyHolder, PublicKeys),
    "evaluator": (Evaluator, EvaluatorPublic),
    "client": (ClientKey, ClientPublic),
}
WRITES = ("mkdir", "open", "fsync", "replace")
"""The calls by which a pair of keys reaches the disk, and in which a full one shows, beside `write`."""


def made(role: str, out: Path) -> OSError | None:
    """Make keys. Returns the error of the system, if there was one."""
    done = CliRunner().invoke(cli, ["keygen", "--role", role, "--out", str(out)])
    assert done.exception is None or isinstance(done.exception, OSError), done.exception
    return done.exception


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def whole(role: str, out: Path) -> bool:
    """Whether both files are there, and nothing else."""
    for name, kind in ROLES[role]:
        document.read(out / name, kind)
    return left(out) == {name for name, _ in ROLES[role]}


class Failing:
    """Counts calls that write, and lets the nth of them fail."""

    def __init__(self, nth: int) -> None:
        self.nth, self.count = nth, 0

    def instead_of(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call_(*words: Any, **more: Any) -> Any:
            reads = real is OPEN and not words[1] & os.O_CREAT
            self.count += not reads
            if not reads and self.count == self.nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*words, **more)

        return call_


OPEN = os.open


@every("role", ROLES)
@every("there", [False, True])
def test_whichever_write_fails_nothing_is_left(
    role: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0
    for nth in range(1, 30):
        failing, home = Failing(nth), tmp_path / str(nth)
        out = home / "deep" / "K"
        home.mkdir()
        if there:
            out.mkdir(parents=True)
            (out / "notes.txt").write_text("mine")
        before = left(home)
        with monkeypatch.context() as patched:
            for name in WRITES:
                patched.setattr(os, name, failing.instead_of(getattr(os, name)))
            error = made(role, out)
        if error is not None:
            assert error.errno == errno.ENOSPC
            assert left(home) == before, nth
            failed += 1
            continue
        # A folder that cannot be made anew is no failure: it was there already.
        assert left(out) >= {name for name, _ in ROLES[role]}
        if failing.count < nth:
            break
    # Of each file: it is opened, synced, moved, and its folder is synced.
    assert failed >= 8
    assert failing.count < nth, "not every call has failed once"


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """The kernel refuses every byte of a file beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@every("role", ROLES)
def test_a_write_that_ends_half_way_leaves_nothing(role: str, tmp_path: Path) -> None:
    assert made(role, tmp_path / "sizes") is None
    sizes = sorted((tmp_path / "sizes" / name).stat().st_size for name, _ in ROLES[role])
    for limit in (0, 100, *(size - 1 for size in sizes)):
        with files_up_to(limit):
            error = made(role, tmp_path / "K")
        assert error is not None
        assert error.errno == errno.EFBIG
        assert not (tmp_path / "K").exists(), limit
    with files_up_to(sizes[-1]):
        assert made(role, tmp_path / "K") is None
    assert whole(role, tmp_path / "K")


def test_a_fingerprint_that_cannot_be_told_leaves_nothing(tmp_path: Path) -> None:
    """`keygen > fingerprint.txt` on a full disk: nobody could compare the keys."""
    words = [sys.executable, "-m", "securefl", "keygen", "--role", "evaluator", "--out", tmp_path / "V"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False, timeout=120)
    assert done.returncode == 1
    assert b"the disk is full" in done.stderr
    assert left(tmp_path) == set()


KILLED = """
import os, sys
from pathlib import Path
from securefl.commands.main import cli
real, left = os.replace, [int(sys.argv[1])]
def replace(*words, **more):
    if not left[0]:
        os.kill(os.getpid(), 9)
    left[0] -= 1
    return real(*words, **more)
os.replace = replace
cli(sys.argv[2:])
"""


@every("role", ROLES)
@every("moved", [0, 1])
def test_a_keygen_that_is_killed_is_made_whole_by_the_same_command(
    role: str, moved: int, tmp_path: Path
) -> None:
    words = ["keygen", "--role", role, "--out", str(tmp_path / "K"), "--openings", "7"]
    assert Started("-c", KILLED, moved, *words).wait() == -signal.SIGKILL
    (secret, kind), (public, _) = ROLES[role]
    found = {name for name in left(tmp_path / "K") if not name.endswith(".part")}
    assert found == ({secret} if moved else set())
    before = (tmp_path / "K" / secret).read_bytes() if moved else b""
    if moved and role == "key-holder":
        wrong = call("keygen", "--role", role, "--out", tmp_path / "K", code=1)
        assert "half of a pair: --openings 7 --params pads. Repeat them" in wrong
        assert not (tmp_path / "K" / public).exists()
    said = call(*words)
    assert ("was alone" in said) == bool(moved)
    keys = document.read(tmp_path / "K" / secret, kind)
    if moved:
        assert (tmp_path / "K" / secret).read_bytes() == before, "the secret stays"
    assert OWNERS[role][0].from_document(keys).public.fingerprint in said
    assert "never overwritten" in call(*words, code=1)


@every("role", ROLES)
def test_two_keygens_at_once_never_mix_their_pairs(role: str, tmp_path: Path) -> None:
    """Both look before either writes: the second is refused, or finds the first one's pair."""
    (secret, kind), (public, _) = ROLES[role]
    real = document.write
    inner: list[Started] = []

    def write(path: Path, content: Any, **more: Any) -> None:
        if not inner:  # the other process runs between this one's check and its first file
            inner.append(Started("-m", "securefl", "keygen", "--role", role, "--out", tmp_path / "K"))
            inner[0].wait()
        real(path, content, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(document, "write", write)
        assert made(role, tmp_path / "K") is None
    assert inner[0].returncode == 1
    assert "in which one makes its files now" in inner[0].stderr
    assert whole(role, tmp_path / "K")
    keys = document.read(tmp_path / "K" / secret, kind)
    own, of = OWNERS[role]
    told = own.from_document(keys).public.fingerprint
    kept = document.read(tmp_path / "K" / public, ROLES[role][1][1])
    assert of.from_document(kept).fingerprint == told


def test_a_keygen_that_comes_late_finds_the_pair_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed its first check before the other one wrote, and got the lock after that."""
    real = files.filling

    @contextmanager
    def late(folder: Path) -> Iterator[None]:
        monkeypatch.setattr(files, "filling", real)
        assert made("evaluator", tmp_path / "V") is None
        with real(folder):
            yield

    monkeypatch.setattr(files, "filling", late)
    assert "never overwritten" in call("keygen", "--role", "evaluator", "--out", tmp_path / "V", code=1)
    assert whole("evaluator", tmp_path / "V")


def test_a_link_to_nothing_is_not_overwritten_and_parameters_are_the_key_holders(tmp_path: Path) -> None:
    (tmp_path / "V").mkdir()
    (tmp_path / "V" / "evaluator.pub").symlink_to("nowhere")
    assert "never overwritten" in call("keygen", "--role", "evaluator", "--out", tmp_path / "V", code=1)
    told = call("keygen", "--role", "evaluator", "--params", "pads", "--out", tmp_path / "W", code=2)
    assert "for the role key-holder alone" in told
    assert left(tmp_path) == {"V", "V/evaluator.pub"}
