"""Doors of files that somebody else may have written: texts, tables, arrays, images, models, ledgers."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from flwr.app import Array, ArrayRecord
from fuzz.target import Target
from PIL import Image
from safetensors.numpy import save as safetensors
from support import tiny_study, tiny_sweep
from support.exported_cards import CARD, values
from support.residents import identities
from support.tiny_secagg import CHARGE, TERMS

from securefl.accounting.events import dump_charge, load_charge
from securefl.accounting.ledger import Ledger
from securefl.accounting.statements import identity_of, releases_of, statement, terms_of
from securefl.core.release import ReleaseKey
from securefl.data.images import notes_on, read_images
from securefl.data.layout import Dialect
from securefl.data.networks import FORMAT, network_of
from securefl.data.tables import read_records, read_table, targets_in
from securefl.deployment import plan_file, roster
from securefl.flower.records import Layout, Task
from securefl.flower.terms import AppTerms
from securefl.matching.profile_file import read_profile
from securefl.study import config, finished
from securefl.sweep import cells
from securefl.training import exported, trained

VECTORS = Path(__file__).parents[1] / "vectors"


def filed(
    name: str, read: Callable[[Path], object], valid: bytes, *more: bytes, file: str = "", weight: int = 4
) -> Target:
    """A reader of a file of this ending."""
    path = Path(tempfile.mkdtemp()) / (file or f"file.{name.split()[0].strip(',')}")

    def enter(raw: bytes) -> None:
        path.write_bytes(raw)
        read(path)

    return Target(name, enter, valid, weight=weight, more=more)


def text_doors() -> list[Target]:
    def text(read: Callable[[str], object]) -> Callable[[bytes], object]:
        return lambda raw: read(raw.decode(errors="replace"))

    own = identities("client-0000", "client-0001", "server")
    lines = "\n".join(roster.line_of(one.member()) for one in own.values())
    texts = json.loads((VECTORS / "texts" / "vectors.json").read_text())
    arrays = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "seen": Array(np.array(0, np.int64))})
    task = json.dumps([Layout.of(arrays).parts, ["a", "b", "c"], {"lr": 0.1}, [[0]]]).encode()
    return [
        Target("roster", text(roster.parse), lines.encode(), weight=20),
        filed(
            "plan file",
            lambda path: plan_file.read(path.parent),
            texts["plan file"].encode(),
            file=plan_file.NAME,
        ),
        Target("study", text(config.parse), tiny_study.text().encode()),
        Target("sweep", text(cells.parse_sweep), tiny_sweep.two_lists().text.encode()),
        filed("toml terms", AppTerms.read, b'terms = "noised"\nevaluation = ["accuracy"]\n'),
        filed("json profile", read_profile, b'{"mean": [0.1, 0.2], "variance": [1.0, 0.5]}', weight=10),
        Target("task of an app", Task.decoded, task, weight=20),
        filed("json of a run", finished._read, b'{"arms": []}'),
        filed(
            "csv of a run",
            finished._read,
            ",".join(sorted(finished._COLUMNS)).encode() + b"\n1,2,3,4,5,6,7,8,9\n",
        ),
    ]


def table_doors() -> list[Target]:
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 0])
    table, plain, image = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pd.DataFrame({"a": [1.5, 2.0], "b": ["x", "y"]}).to_parquet(plain)
    pd.DataFrame({"a": [1.5, 2.0], "b": ["x", "y"], "c": [[1.0, 2.0], [3.0, 4.0]]}).to_parquet(table)
    Image.new("RGB", (3, 2), (9, 8, 7)).save(image, "PNG")
    images = [drawn(form) for form in ("JPEG", "GIF", "BMP")]

    def arrays(path: Path) -> None:
        read_table(path)
        read_records(path)
        targets_in(path)
        network_of(path)

    def pixels(path: Path) -> None:
        # 44 bytes may claim MOST_PIXELS. They take more memory than the test allows all inputs together.
        with patch("securefl.data.images.MOST_PIXELS", 2**20):
            notes_on([path])
            read_images([path], 4)

    rows = b"a,b,label\n1,2.5,x\n3,,y\n"
    return [
        filed("csv", read_table, rows, weight=8),
        filed("csv, one row a line", lambda path: read_table(path, lenient=True), rows, weight=8),
        filed(
            "csv of semicolons",
            lambda p: read_table(p, None, Dialect(delimiter=";", decimal=",")),
            b"a;b\n1,5;x\n",
        ),
        filed(
            "npz",
            arrays,
            zipped(x=x, y=y),
            zipped(x=x, y=y, network=np.array("a network"), securefl=np.array(FORMAT)),
            weight=12,
        ),
        filed("npz, packed", arrays, zipped(np.savez_compressed, x=x, y=y), weight=12),
        filed("npy", read_records, array(x), array(y), weight=8),
        filed("parquet", arrays, table.getvalue(), weight=12),
        filed("parquet, lenient", lambda path: read_table(path, lenient=True), plain.getvalue(), weight=8),
        filed("png", pixels, image.getvalue(), *images, weight=8),
    ]


def drawn(form: str) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (3, 2), (9, 8, 7)).save(made, form)
    return made.getvalue()


def zipped(save: Any = np.savez, **arrays: Any) -> bytes:
    made = io.BytesIO()
    save(made, **arrays)
    return made.getvalue()


def array(values: Any) -> bytes:
    made = io.BytesIO()
    np.save(made, values)
    return made.getvalue()


def model_doors() -> list[Target]:
    path = Path(tempfile.mkdtemp()) / "model.safetensors"
    exported.save(path, values(), CARD)
    model, plain = path.read_bytes(), safetensors({"w": np.zeros((2, 3), np.float32)})

    def card(raw: bytes) -> bytes:
        """A model whose card was damaged, under a digest that fits."""
        try:
            exported.save(path, values(), json.loads(raw))
        except (ValueError, RecursionError):
            return raw
        return path.read_bytes()

    return [
        filed("safetensors", trained.load, model, weight=8),
        filed("safetensors of others", exported.weights_of, plain, model, weight=8),
        carded(json.dumps(CARD).encode(), card),
    ]


def carded(valid: bytes, signed: Callable[[bytes], bytes]) -> Target:
    load = filed("safetensors card", trained.load, b"").enter
    return Target("card of a model", lambda raw: load(signed(raw)), valid, weight=8)


def ledger_doors() -> list[Target]:
    folder = Path(tempfile.mkdtemp())
    key = ReleaseKey("client-0001", bytes(32), 1, 0, 0, "update")
    with Ledger(folder / "ledger.sqlite", TERMS) as ledger:
        ledger.reserve([(key, CHARGE)])

    def states(path: Path) -> None:
        for read in (identity_of, terms_of, releases_of, lambda own: statement(own, party="server")):
            read(path)

    return [
        filed("ledger", states, (folder / "ledger.sqlite").read_bytes(), weight=2),
        Target("charge", lambda raw: load_charge(raw.decode(errors="replace")), dump_charge(CHARGE).encode()),
    ]


DOORS: Mapping[str, Callable[[], list[Target]]] = {
    "texts": text_doors,
    "tables": table_doors,
    "models": model_doors,
    "ledgers": ledger_doors,
}
