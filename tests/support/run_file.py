"""The parts of a run's file: ledger, journal and checkpoint, replaced or emptied one by one."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from securefl.accounting import store
from securefl.accounting.note import END
from securefl.storage import journal
from securefl.storage.database import Kind
from securefl.study import checkpoint

PARTS: Final = {"ledger": store.KIND, "journal": journal.KIND, "checkpoint": checkpoint.KIND}


def take(source: Path, part: str, target: Path) -> None:
    """Put a part of the run's file `source` in place of the one in `target`; of a ledger, with its note."""
    with closing(sqlite3.connect(target, isolation_level=None)) as db:
        db.execute("ATTACH ? AS other", (str(source),))
        _replace(db, PARTS[part], "INSERT INTO main.{0} SELECT * FROM other.{0}")
    if part == "ledger":
        shutil.copy(source.with_name(source.name + END), target.with_name(target.name + END))


def empty(part: str, target: Path) -> None:
    """Delete all rows of a part; of a ledger, with its note."""
    with closing(sqlite3.connect(target, isolation_level=None)) as db:
        _replace(db, PARTS[part], "")
    if part == "ledger":
        target.with_name(target.name + END).unlink()


def _replace(db: sqlite3.Connection, kind: Kind, statement: str) -> None:
    db.execute("BEGIN")
    for made in kind.tables:
        (table,) = re.findall(r"^CREATE TABLE (\w+)", made)
        db.execute(f"DELETE FROM main.{table}")
        db.execute(statement.format(table))
    db.execute("COMMIT")
