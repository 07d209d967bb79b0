"""What people bring: kinds of models and files, each trained for a round, refused with a remedy, or missing.

    python benchmarks/brought_kinds.py [--write]

Each kind is a study of one round over four clients: without noise, with [dpsgd], or with noise per client.
The outcome is what happens: "trained", "refused" with the last sentence of the refusal, or "missing", where
an error of another library is raised, or is all that a refusal says.
"""

from __future__ import annotations

import pickle
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from kept import keep
from PIL import Image
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from securefl.errors import SecureFLError
from securefl.study.config import Brought, parse
from securefl.study.run import run_arm
from securefl.study.world import build

PRIVACY = {
    "": 'unit = "record"\nadjacency = "replace-one"\nnoise = "none"\nbudget = inf\nnon_private = ["update"]',
    "[dpsgd]": 'unit = "record"\nadjacency = "add-remove"\nnoise = "none"\nbudget = 100.0\nnon_private = []',
    "client": 'unit = "client"\nadjacency = "zero-out"\nnoise = "central"\nepsilon = 8.0\nbudget = 8.0\n'
    "non_private = []",
}
DPSGD = """
[dpsgd]
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = 0.2
expected_batch = 4
steps = 1
optimizer = "sgd"
learning_rate = 0.1
"""
WIDTH, CLASSES, SIDE, CODES = 6, 3, 8, 20


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind that is brought. training: a key of `PRIVACY`. model, data, local: lines of these sections."""

    name: str
    training: str = ""
    made: Callable[..., nn.Module] | None = None
    model: str = ""
    data: str = ""
    records: Any = None
    local: str = ""


# Models ---------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A body of these layers under a head, after features were averaged to (n, WIDTH)."""

    def __init__(self, *body: nn.Module, last: Callable[[Tensor], Any] = lambda found: found) -> None:
        super().__init__()
        self.body, self.head, self.last = nn.Sequential(*body), nn.Linear(WIDTH, CLASSES), last

    def forward(self, x: Tensor) -> Any:
        found = self.body(x)
        return self.last(self.head(found if found.ndim == 2 else found.flatten(2).mean(2)))


def dense(*more: nn.Module) -> Net:
    return Net(nn.Flatten(), nn.Linear(SIDE * SIDE, WIDTH), *more, nn.ReLU())


def convolved(*more: nn.Module) -> Net:
    return Net(nn.Conv2d(1, WIDTH, 3, padding=1), *more, nn.ReLU())


class Residual(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), norm(), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.inner(x)
        return found


class LoRA(nn.Module):
    """A frozen dense layer and a trained product of two narrow ones (Hu et al., ICLR 2022)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + self.b(self.a(x))
        return found


class Rows(nn.Module):
    """A layer over the rows of an image, or over tokens: (n, places, width) -> (n, WIDTH)."""

    def __init__(self, layer: nn.Module, inputs: int, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call, self.inner = layer, call, nn.Linear(inputs, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, self.inner(x.reshape(len(x), -1, self.inner.in_features))).mean(1)


class Tied(nn.Module):
    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE * SIDE, WIDTH), nn.Linear(SIDE * SIDE, WIDTH)
        self.second.weight = (
            nn.Parameter(self.first.weight.detach(), requires_grad=False) if frozen else self.first.weight
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.first(x.flatten(1)) + self.second(x.flatten(1)))
        return found


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Bag(nn.Module):
    """Tokens (n, places) -> (n, CLASSES) by a layer of embeddings."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        return self.head(found if found.ndim == 2 else found.mean(1))


class CharLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cells = nn.Embedding(CODES, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.cells(self.table(x))[0][:, -1])
        return found


def of_type(kind: torch.dtype) -> Callable[[], nn.Module]:
    return lambda: dense().to(kind)


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


def encoder() -> Net:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
    return Net(Rows(layer, SIDE, lambda own, x: own(x)))


def attention() -> Net:
    layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    return Net(Rows(layer, SIDE, lambda own, x: own(x, x, x, need_weights=False)[0]))


def recurrent(kind: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Net(Rows(kind(WIDTH, WIDTH, batch_first=True), SIDE, lambda own, x: own(x)[0]))


HEAD, LOCAL, BOUND = 'train = "head"', 'buffers = "local"', "buffers_bound = 1.0"
BATCH = lambda: convolved(nn.BatchNorm2d(WIDTH))  # noqa: E731 - one of many factories


def models() -> Iterator[Kind]:
    for how in PRIVACY:
        yield Kind(name="dense layers", made=dense, training=how)
        yield Kind(
            name="residual block, group norm",
            training=how,
            made=lambda: convolved(Residual(lambda: nn.GroupNorm(2, WIDTH))),
        )
        yield Kind(name="batch norm", made=BATCH, training=how)
        yield Kind(name="batch norm in a frozen body", made=BATCH, model=HEAD, training=how)
        yield Kind(
            name="LoRA on a frozen layer",
            made=lambda: Net(nn.Flatten(), LoRA(nn.Linear(64, WIDTH), 2)),
            training=how,
        )
    yield Kind(name="batch norm, kept by clients", made=BATCH, model=LOCAL)
    yield Kind(name="batch norm, kept by clients", made=BATCH, model=LOCAL, training="client")
    yield Kind(name="batch norm, a bound of its own", made=BATCH, local=BOUND, training="client")
    how = "[dpsgd]"
    yield Kind(name="layer norm", made=lambda: dense(nn.LayerNorm(WIDTH)), training=how)
    yield Kind(
        name="instance norm with statistics",
        training=how,
        made=lambda: convolved(nn.InstanceNorm2d(WIDTH, track_running_stats=True)),
    )
    yield Kind(name="dropout", made=lambda: dense(nn.Dropout(0.2)), training=how)
    yield Kind(name="LSTM over rows", made=recurrent(nn.LSTM), training=how)
    yield Kind(name="GRU over rows", made=recurrent(nn.GRU), training=how)
    yield Kind(name="multi-head attention", made=attention, training=how)
    yield Kind(name="transformer encoder layer", made=encoder, training=how)
    yield Kind(name="a layer that centres its batch", made=lambda: dense(Centred()), training=how)
    yield Kind(
        name="embedding of tokens",
        made=lambda: Bag(nn.Embedding(CODES, WIDTH)),
        records="tokens",
        training=how,
    )
    yield Kind(
        name="embedding bag", made=lambda: Bag(nn.EmbeddingBag(CODES, WIDTH)), records="tokens", training=how
    )
    yield Kind(name="embedding bag", made=lambda: Bag(nn.EmbeddingBag(CODES, WIDTH)), records="tokens")
    yield Kind(name="char-LSTM", made=CharLSTM, records="tokens", training=how)
    yield Kind(
        name="a token beyond the vocabulary",
        made=lambda: Bag(nn.Embedding(CODES, WIDTH)),
        records="beyond",
        training=how,
    )
    yield Kind(name="spectral norm", made=lambda: Net(nn.Flatten(), spectral_norm(nn.Linear(64, WIDTH))))
    yield Kind(name="tied weights", made=Tied)
    yield Kind(name="tied weights, one name frozen", made=lambda: Tied(frozen=True))
    yield Kind(name="no free parameter", made=lambda: frozen(dense()))
    yield Kind(name="a lazy layer", made=lambda: Net(nn.Flatten(), nn.LazyLinear(WIDTH)))
    yield Kind(name="float64", made=of_type(torch.float64))
    yield Kind(name="bfloat16", made=of_type(torch.bfloat16))
    yield Kind(
        name="outputs as a mapping",
        made=lambda: Net(nn.Flatten(), nn.Linear(64, WIDTH), last=lambda found: {"logits": found}),
    )
    yield Kind(name="outputs of another width", made=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 7)))


# Files ----------------------------------------------------------------------------------------------


def rows(n: int = 64) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    found = pd.DataFrame({"a": rng.random(n).round(3), "b": rng.random(n).round(3)})
    return found.assign(site=np.arange(n) % 4, label=(found["a"] > found["b"]).astype(int))


def written(table: pd.DataFrame, delimiter: str = ",", decimal: str = ".") -> str:
    """The text of a CSV in a dialect. It is read here alone, and by no spreadsheet."""
    cells = [[*table.columns], *table.astype(object).where(table.notna(), "").to_numpy().tolist()]
    return "\n".join(delimiter.join(str(cell).replace(".", decimal) for cell in row) for row in cells) + "\n"


def files(home: Path) -> Iterator[Kind]:
    """The files, written to `home`, and the kinds that read them."""
    table = rows()
    words = 'target = "label"\nclasses = [0, 1]\ncolumns = { a = { range = [0, 1] }, b = { range = [0, 1] } }'
    words += '\nignore = ["site"]\npublic_num_examples = 20'

    def of(name: str, file: str, more: str = words, training: str = "[dpsgd]", **other: Any) -> Kind:
        return Kind(name=name, data=f'source = "{file}"\n{more}', training=training, **other)

    (home / "plain.csv").write_text(written(table))
    yield of("CSV", "plain.csv")
    (home / "semicolons.csv").write_text(written(table, ";", ","))
    yield of("CSV of semicolons, undeclared", "semicolons.csv")
    yield of(
        "CSV of semicolons, declared", "semicolons.csv", words + '\ncsv = { delimiter = ";", decimal = "," }'
    )
    (home / "latin.csv").write_text(written(table), encoding="utf-16")
    yield of("CSV in UTF-16", "latin.csv", words + '\ncsv = { encoding = "utf-16" }')
    table.to_parquet(home / "table.parquet")
    yield of("parquet", "table.parquet")
    two = table.assign(high=(table["a"] + table["b"] > 1).astype(int))
    (home / "labels.csv").write_text(written(two))
    for how in PRIVACY:
        yield of(
            "CSV of two labels of a record",
            "labels.csv",
            words.replace('"label"', '["label", "high"]'),
            training=how,
        )
    x, y = records("images")
    np.savez(home / "arrays.npz", x=x, y=y)
    yield of("arrays (.npz)", "arrays.npz", f"classes = {CLASSES}", "")
    np.savez(home / "labels.npz", x=x, y=np.eye(CLASSES, dtype=np.int64)[y])
    yield of("arrays (.npz), three labels of a record", "labels.npz", "classes = 2", "")
    yield of("arrays (.npz), labels as one 1 among zeros", "labels.npz", f"classes = {CLASSES}", "")
    (home / "table.pkl").write_bytes(pickle.dumps(table))
    yield of("a pickle of a table", "table.pkl")
    for number, (image, label) in enumerate(zip(x[:, 0], y, strict=True)):
        place = home / "photos" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255).astype(np.uint8)).save(place / f"{number}.png")
    yield of("a folder of images as a source", "photos", "public_num_examples = 20")
    save_file({"head.bias": np.ones(9, np.float32)}, home / "other.safetensors")
    (home / "weights.pt").write_bytes(pickle.dumps({"head.bias": [1.0]}))
    torch.manual_seed(0)
    save_file({k: v.numpy() for k, v in dense().state_dict().items()}, home / "model.safetensors")
    for name, file in (
        ("initial weights", "model.safetensors"),
        ("initial weights of another model", "other.safetensors"),
        ("initial weights as a pickle", "weights.pt"),
    ):
        yield Kind(name=name, made=dense, model=f'weights = "{file}"\ntrained_on = "public"')
    (home / "empty.csv").write_text(written(table.assign(a=table["a"].mask(table.index == 3))))
    yield of(
        "CSV with an empty cell, declared",
        "empty.csv",
        words.replace("a = { range = [0, 1] }", "a = { range = [0, 1], missing = 0.5 }"),
        training="",
    )
    yield of("CSV with an empty cell, undeclared", "empty.csv", training="")


def records(kind: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    y = np.arange(64) % CLASSES
    if kind == "images":
        return rng.random((64, 1, SIDE, SIDE)).astype(np.float32), y
    x = rng.integers(0, CODES, (64, 5))
    if kind == "beyond":
        x[7, 2] = CODES
    return x, y


# Playing --------------------------------------------------------------------------------------------


def study_of(kind: Kind) -> str:
    section = kind.data or f"classes = {CLASSES}\npublic_num_examples = 20"
    model = kind.model if kind.made else 'kind = "mlp"\nhidden = [4]'
    bound = f"update_bound = 1.0\n{kind.local}" if kind.training == "client" else kind.local
    return f"""
[study]
name = "kinds"
rounds = 1
[data]
{section}
clients = 4
partition = {{ kind = "iid" }}
[model]
{model}
[local]
optimizer = "sgd"
learning_rate = 0.05
epochs = 1
batch_size = 8
{bound}
[privacy]
sum = "clear"
scores = "clear"
{PRIVACY[kind.training]}
delta = 1e-2
force_delta = true
adversaries = {'["others"]' if kind.training == "client" else '["server", "others"]'}
min_cohort_size = 2
min_honest = 1
max_client_weight = 0.5
{DPSGD if kind.training == "[dpsgd]" else ""}
[[arm]]
name = "FedAvg"
protocol = "fedavg"
fraction = 1.0
aggregation = "partial"
"""


def outcome(kind: Kind, home: Path) -> tuple[str, str]:
    data = None if kind.data else records(kind.records or "images")
    try:
        study = parse(study_of(kind), home=home, brought=Brought(data=data, model=kind.made))
        with tempfile.TemporaryDirectory() as folder:
            run = run_arm(study, study.arms[0], build(study, 0), Path(folder), lambda record: None)
    except SecureFLError as error:
        words = " ".join(str(error).replace(f"{home}/", "").split())
        # An error of torch or of another library in it is no answer: nobody thought of such a kind.
        if foreign := re.search(r"got (?!ConfigError)\w+Error: .{0,80}", words):
            return "missing", foreign[0].removeprefix("got ")
        return "refused", re.split(r"(?<=[.:]) (?=[A-Z`])", words)[-1]
    except Exception as error:  # what is not foreseen is what this table is for
        return "missing", f"{type(error).__name__}: {error!s:.80}"
    (record,) = run.records
    return ("trained", "") if record["answered"] else ("missing", "nobody answered")


def table() -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        home, found = Path(folder), []
        for kind in (*models(), *files(home)):
            done, words = outcome(kind, home)
            found.append((kind.name, kind.training, done, words))
            print(*found[-1], sep=" | ", flush=True)
    return pd.DataFrame(found, columns=["kind", "training", "outcome", "words"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep("brought_kinds", table())
