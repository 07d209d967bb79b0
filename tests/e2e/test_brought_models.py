"""Models as people bring them: codes, attention, tied and frozen parts, trained with DP-SGD and without."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.own_study import written
from support.private_studies import DPSGD
from torch import Tensor, nn

import securefl
from securefl.algorithm.clients import Evaluation
from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.study import world
from securefl.study.config import Brought, Study, parse
from securefl.training import evaluate
from securefl.training.dpsgd import train_privately
from securefl.training.jobs import readable
from securefl.training.local import train

PLACES, KNOWN, WIDTH = 6, 12, 8
Clients = list[tuple[Any, Any]]


class Bag(nn.Module):
    """Opacus' example of embeddings: the mean of a text's words."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(KNOWN, WIDTH), nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.words(x))


class CharLSTM(nn.Module):
    """Opacus' classification of names, with torch's layer in place of DPLSTM."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(KNOWN, WIDTH)
        self.body, self.head = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(self.letters(x))[0][:, -1])


class Residual(nn.Module):
    """A block of a ResNet with group norm, as Opacus' tutorial of CIFAR-10 has it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, 4), nn.GroupNorm(2, 4)])
        self.head = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Any:
        start = self.first(x)
        inner = self.second(self.norms[0](start).relu())
        return self.head((self.norms[1](inner) + start).relu().mean((2, 3)))


class Attending(nn.Module):
    """torch's attention over a padded text."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(KNOWN, WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Any:
        values = self.words(x)
        return self.head(self.body(values, values, values)[0].mean(1))


class Block(nn.Module):
    """torch's encoder layer, with dropout, and the words' table as the weights of a layer behind it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(KNOWN, WIDTH)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.back, self.head = nn.Linear(WIDTH, KNOWN, bias=False), nn.Linear(KNOWN, outputs)
        self.back.weight = self.words.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.back(self.body(self.words(x), src_key_padding_mask=x == 0).mean(1)))


class Padded(nn.Module):
    """torch's encoder over padded texts. A record of padding alone has no output."""

    def __init__(self, outputs: int, *, nested: bool = True) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(KNOWN, WIDTH, padding_idx=0), nn.Linear(WIDTH, outputs)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(self.words(x), src_key_padding_mask=x == 0).mean(1))


@dataclass
class Found:
    last_hidden_state: Tensor


class Encoder(nn.Module):
    """A text encoder in the manner of Hugging Face's: mask, positions in a buffer, an object of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(KNOWN, WIDTH, padding_idx=0), nn.Embedding(PLACES, WIDTH)
        self.register_buffer("position_ids", torch.arange(PLACES)[None], persistent=False)
        self.layer = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Found:
        values = self.words(input_ids) + self.places(self.position_ids[:, : input_ids.shape[1]])
        for layer in self.layer:
            values = layer(values, src_key_padding_mask=attention_mask == 0)
        return Found(values)


class FrozenEncoder(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.encoder, self.head = Encoder().requires_grad_(False), nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.encoder(x, attention_mask=(x != 0).long()).last_hidden_state[:, 0])


class Tables(nn.Module):
    """A table for each column: a code of one may be beyond that of another."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.few, self.many = nn.Embedding(2, 4), nn.Embedding(KNOWN, 4)
        self.head = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.cat([self.few(x[:, 0]), self.many(x[:, 1])], 1))


class Mixed(nn.Module):
    """A code and two numbers in one record: several inputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(KNOWN, 4), nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Any:
        words = self.words(x[:, 0].long().clamp(0, KNOWN - 1))
        return self.head(torch.cat([words, x[:, 1:]], 1))


class Pixels(nn.Sequential):
    """An image of 1 x 1, and batch norm behind a convolution."""

    def __init__(self, outputs: int) -> None:
        layers = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
        super().__init__(*layers, nn.Linear(4, outputs))


def texts() -> Clients:
    """Whole numbers of any type stay what they are: here those of 16 bits."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, KNOWN, (30, PLACES)).astype(np.int16) for _ in range(3)]
    return [(x, (x[:, 0] >= KNOWN // 2).astype(int)) for x in drawn]


def numbers(*shape: int) -> Clients:
    rng = np.random.default_rng(0)
    drawn = [rng.random((30, *shape)).astype(np.float32) for _ in range(3)]
    return [(x, (x.reshape(30, -1)[:, 0] > 0.5).astype(int)) for x in drawn]


def two_columns() -> Clients:
    return [(x[:, :2] % [2, KNOWN], y) for x, y in texts()]


MODELS: dict[str, tuple[type[nn.Module], Clients]] = {
    "embedding bag": (Bag, texts()),
    "char-LSTM": (CharLSTM, texts()),
    "residual block": (Residual, numbers(1, 8, 8)),
    "attention": (Attending, texts()),
    "encoder block, tied": (Block, texts()),
    "frozen encoder": (FrozenEncoder, texts()),
    "columns of unlike codes": (Tables, two_columns()),
    "several inputs": (Mixed, numbers(3)),
    "image of one pixel": (Pixels, numbers(1, 1, 1)),
}
ROUND = DPSGD.replace("sampling_rate = 0.1", "sampling_rate = 1.0").replace("steps = 5", "steps = 2")


def study(model: Any, data: Any, *, private: bool, section: str = "") -> Study:
    section = f"\n[data]\nclasses = 2\n{section}" + "public_num_examples = 30\n" * private
    text = written(data=section, model="", extra=ROUND if private else "", rounds=1)
    if private:
        text = text.replace('adjacency = "replace-one"', 'adjacency = "add-remove"')
    return parse(text, brought=Brought(data=data, model=model))


@pytest.mark.parametrize("private", [True, False], ids=["DP-SGD", "without"])
@pytest.mark.parametrize("case", MODELS)
def test_a_model_as_people_bring_it_trains(case: str, private: bool) -> None:
    model, clients = MODELS[case]
    problem = world.build(here := study(model, clients, private=private), 0).problem
    x, y = world.build(here, 0).records[0]
    assert readable(problem, x).all()
    made = problem.module(problem.initial)
    before = {name: one.clone() for name, one in made.state_dict().items()}
    names = {*before}
    if problem.private is not None:
        train_privately(made, x, y, problem.private, problem.loss, Source())
    else:
        train(made, x, y, problem.local, problem.loss, np.random.default_rng(0), 0)
    frozen = {name for name in names if name.startswith("encoder.")}
    for name, one in made.named_parameters():
        assert bool((one != before[name]).any()) == (name not in frozen), name
    if "BatchNorm" not in repr(model(2)):  # group norm stands in for it
        assert names == {*model(2).state_dict()}  # type: ignore[call-arg]


def test_an_encoder_over_padded_texts_is_not_judged_by_padding_alone() -> None:
    world.build(study(Padded, texts(), private=False), 0)
    with pytest.raises(ConfigError, match="enable_nested_tensor=False"):
        world.build(study(Padded, texts(), private=True), 0)
    world.build(study(partial(Padded, nested=False), texts(), private=True), 0)


def test_records_of_padding_alone_count_as_zero_in_a_test() -> None:
    """torch's nested tensors have no form for a batch of which all records are padding."""
    torch.manual_seed(0)
    model, (x, y) = Padded(2), texts()[0]
    assert evaluate(model, np.zeros((3, PLACES), np.int64), y[:3], "classification") == Evaluation(
        accuracy=0.0, loss=0.0
    )
    found = evaluate(model, x.astype(np.int64), y, "classification")
    assert np.isfinite(found.loss)


# Codes, from arrays and files ---------------------------------------------------------------------------


def columns(clients: Clients) -> pd.DataFrame:
    x, y = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    names = [f"w{place}" for place in range(PLACES)]
    return pd.DataFrame(x, columns=names).assign(y=y, site=np.repeat(["a", "b", "c"], 30))


@pytest.mark.parametrize("form", ["csv", "parquet", "torch"])
def test_whole_numbers_reach_an_embedding_as_such(form: str, tmp_path: Path) -> None:
    source, data = tmp_path / f"texts.{form}", None
    table = columns(texts())
    if form == "csv":
        table.to_csv(source, index=False)
    elif form == "parquet":
        pa = pytest.importorskip("pyarrow")
        cells = pa.array(table.iloc[:, :PLACES].to_numpy().tolist(), pa.list_(pa.int64(), PLACES))
        made = pa.table({"words": cells, "y": pa.array(table["y"]), "site": pa.array(table["site"])})
        pytest.importorskip("pyarrow.parquet").write_table(made, source)
    else:
        tensors = ([torch.from_numpy(part) for part in pair] for pair in texts())
        data = [torch.utils.data.TensorDataset(*pair) for pair in tensors]
    section = "\n[data]\nclasses = 2\npublic_num_examples = 30\n"
    if data is None:
        section += f'source = "{source}"\ntarget = "y"\nclient_column = "site"\n'
        section += '[data.columns]\nsite = { categories = ["a", "b", "c"] }\n'
    text = written(data=section, model="", extra=ROUND, rounds=1)
    text = text.replace('adjacency = "replace-one"', 'adjacency = "add-remove"')
    run = securefl.run(text, data=data, model=Bag, out=tmp_path / "out", progress=False)
    x, _ = run.test_records()
    assert x.dtype == np.int64
    assert set(x.flat) <= {*range(KNOWN)}
    model = securefl.load(run.export(tmp_path / "model.safetensors"), model=Bag)
    if form == "csv":
        assert model.predict(table.head(4)).tolist() == model.predict(table.iloc[:4, :PLACES].values).tolist()
        with pytest.raises(DataError, match=r"expected whole numbers .* in record 3 at \(1,\)"):
            model.predict(table.head(4).assign(w1=[0, 1, 0.5, 2]))
        with pytest.raises(DataError, match=rf"row 3, column 'w1': {KNOWN} .*a code must be one"):
            model.predict(table.head(4).assign(w1=[0, 1, KNOWN, 2]))


@pytest.mark.parametrize("odd", [KNOWN, -1, 1.5, 2**24], ids=["beyond", "negative", "a fraction", "rounded"])
def test_a_code_that_the_model_does_not_know(odd: float) -> None:
    """It is an error without a claim, and an unusable record under one."""
    clients = [(x.astype(float), y) for x, y in texts()]
    clients[1][0][7, 2] = odd
    tested = {"train": clients, "test": clients[0]}
    with pytest.raises(DataError, match=r"expected (whole numbers|codes) from 0 to .* got .* in (a )?record"):
        world.build(study(Bag, tested, private=False), 0)
    with pytest.raises(DataError, match=r"expected (whole numbers|codes) from 0 to .* got .* in (a )?record"):
        world.build(study(Bag, {"train": texts(), "test": clients[1]}, private=False), 0)
    here = world.build(study(Bag, tested, private=True), 0)
    problem, (x, y) = here.problem, here.records[1]
    assert problem.private is not None
    assert len(x) == 30
    without = np.delete(x, 7, 0), np.delete(y, 7)
    sums = []
    for own in ((x, y), without):
        made = problem.module(problem.initial)
        train_privately(made, *own, problem.private, problem.loss, Source(SecretKey(bytes(32))))
        sums.append(np.concatenate([one.detach().numpy().ravel() for one in made.parameters()]))
    np.testing.assert_allclose(*sums, atol=1e-6)
