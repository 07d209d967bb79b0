"""Output files: whole or not at all, on disk before they have their name, and never through a link."""

from __future__ import annotations

import ast
import os
import stat
from pathlib import Path

import pytest
from support.every import every
from support.sources import ROOT, nodes, sources

from securefl.core.errors import DataError
from securefl.storage import files
from securefl.storage.files import folder_at, replacing, subfolder, write
from securefl.storage.private_folder import private_folder


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_whole_and_an_error_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write(path, "älter")
    with replacing(path) as target:
        target.write(b"newer")
        assert path.read_text(encoding="utf-8") == "älter"
    assert path.read_bytes() == b"newer"
    with pytest.raises(TypeError), replacing(path) as target:
        target.write(b"half" + None)  # type: ignore[operator]
    assert path.read_bytes() == b"newer"
    assert left(path.parent) == {"report.html"}


def test_a_link_is_refused_and_what_it_points_at_stays(tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "metrics.csv"
    other.write_bytes(b"mine")
    link.symlink_to(other)
    with pytest.raises(DataError, match=r"metrics\.csv, got a symb"):
        write(link, "x")
    link.unlink()
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(DataError, match="symbolic link"):
        write(link, "x")
    assert other.read_bytes() == b"mine"
    assert left(tmp_path) == {"other", "metrics.csv"}


def test_a_link_planted_while_the_file_is_written_is_replaced_itself(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "seeds.json"
    other.write_bytes(b"mine")
    with replacing(path) as target:
        target.write(b"[7]")
        path.symlink_to(other)
    assert other.read_bytes() == b"mine"
    assert path.read_bytes() == b"[7]"
    assert not path.is_symlink()


def test_folders_and_devices_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="got a folder"):
        write(tmp_path / "folder", "x")
    with pytest.raises(DataError, match="got a pipe"):
        write(tmp_path / "pipe", "x")
    with pytest.raises(DataError, match="got a device"):
        write(Path("/dev/null"), "x")


def test_a_folder_of_ours_is_no_link(tmp_path: Path) -> None:
    assert subfolder(tmp_path / "plots") == subfolder(tmp_path / "plots")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "plots")
    with pytest.raises(DataError, match="got a symbolic link"):
        subfolder(tmp_path / "elsewhere")


def test_a_secret_is_its_owners_alone_from_the_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_bytes(b"older, and open to all")
    path.chmod(0o644)
    with replacing(path, secret=True) as target:
        (draft,) = left(tmp_path) - {"secret.key"}
        assert stat.S_IMODE((tmp_path / draft).stat().st_mode) == 0o600
        target.write(b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_draft_is_hidden_and_its_name_fits_where_the_files_does(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with replacing(path):
        (draft,) = left(tmp_path)
        assert draft.startswith(".xxx")
        assert draft.endswith(".part")
    assert left(tmp_path) == {path.name}


def test_the_content_and_then_its_name_are_brought_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, move = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        if done[-1] == "file":
            assert os.fstat(descriptor).st_size == 3, "what is buffered is not on disk"
        sync(descriptor)

    def moved(draft: Path, path: Path) -> None:
        done.append("move")
        move(draft, path)

    monkeypatch.setattr(files.os, "fsync", synced)
    monkeypatch.setattr(files.os, "replace", moved)
    write(tmp_path / "a", "abc")
    assert done == ["file", "move", "folder"]


def test_what_cannot_be_written_is_told_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file" / "a.csv", "x")


WRITERS = {"write_text", "write_bytes", "to_csv", "to_json", "savefig", "print_png", "print_svg"} | {
    "savez",
    "savetxt",
}
TABLE_WRITERS = {"writer", "DictWriter", "to_csv", "to_excel", "to_clipboard", "to_markdown", "savetxt"}
"""Ways to a table that a spreadsheet opens. That of `report.tables.write_csv` quotes formulas."""
IN_MEMORY = {
    ("securefl/data/fetching.py", "open"),
    ("securefl/storage/processes.py", "open"),
    ("securefl/storage/files.py", "fdopen"),
    ("securefl/he/ring.py", "write_bytes"),
    ("securefl/flower/studies.py", "open"),
    ("securefl/commands/features.py", "savez"),
    ("securefl/training/networks.py", "savez"),
    ("securefl/study/run_report.py", "to_json"),
    ("securefl/report/inline.py", "print_svg"),
    ("securefl/report/paper.py", "savefig"),
    ("securefl/report/tables.py", "to_csv"),
}
"""Writers of a buffer, of text, of nothing, of a file without a name or in a folder that ends with its
command; ours."""


def writes(call: ast.Call) -> str | None:
    """The name of a call that writes files; an `open` is one where its mode says so."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if name in ("open", "fdopen"):
        modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        return name if any(isinstance(mode, str) and set(mode) & set("wxa") for mode in modes) else None
    return name if name in WRITERS else None


def test_every_table_for_a_spreadsheet_is_written_by_one_function() -> None:
    found = set()
    others = [
        path for folder in ("benchmarks", "examples", "tools") for path in (ROOT / folder).rglob("*.py")
    ]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in others}
    for where, text in {**sources(), **texts}.items():
        if not any(word in text for word in (*TABLE_WRITERS, "csv")):
            continue
        for node in nodes(text):
            name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            if name in TABLE_WRITERS:
                found.add((where, name))
            # A name taken out of its module could be called without it.
            if isinstance(node, ast.ImportFrom) and node.module == "csv":
                found |= {(where, one.name) for one in node.names}
    assert found == {("securefl/report/tables.py", "to_csv")}


def test_no_module_writes_files_by_another_way() -> None:
    found = set()
    for where, text in sources().items():
        calls = (node for node in nodes(text) if isinstance(node, ast.Call))
        found |= {(where, name) for name in map(writes, calls) if name is not None}
    assert found == IN_MEMORY


def test_no_module_makes_folders_by_another_way() -> None:
    found = set()
    for where, text in sources().items():
        calls = (node.func for node in nodes(text) if isinstance(node, ast.Call))
        names = (getattr(call, "attr", getattr(call, "id", "")) for call in calls)
        found |= {(where, name) for name in names if name in ("mkdir", "makedirs")}
    assert found == {("securefl/storage/files.py", "mkdir")}


@every("exact", [False, True])
def test_nobody_else_writes_a_folder_on_the_way(tmp_path: Path, exact: bool) -> None:
    path = tmp_path / "a" / "b" / "c"
    for mask, left in ((0, 0o750), (0o077, 0o750 if exact else 0o700)):
        before = os.umask(mask)
        try:
            folder_at(path / str(mask), mode=0o750, exact=exact)
        finally:
            os.umask(before)
        assert stat.S_IMODE((path / str(mask)).stat().st_mode) == left
        made = [one for one in tmp_path.rglob("*") if stat.S_IMODE(one.stat().st_mode) & 0o022]
        assert made == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        folder_at(tmp_path / "file")


def test_a_private_folder_is_its_owners_alone(tmp_path: Path) -> None:
    made = private_folder(tmp_path)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.rename(tmp_path / "elsewhere")
    made.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError):
        private_folder(tmp_path)
