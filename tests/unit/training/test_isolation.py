"""A brought model trains privately only if no record can see another: accepted rightly, or refused.

Each model that is accepted is held to three things: its clipped sum is that of a loop over batches of one,
one record more moves it by at most the clipping norm, and another record's bits do not hang on that one.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_dpsgd
from support.every import every
from support.tiny_dpsgd import Own, Silent, Twice, config, flat, seeded, summed_by_hand
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.training import ModelConfig, isolation, to_vector
from securefl.training.augmentation import Augmented
from securefl.training.chunks import body_features, record_losses
from securefl.training.dpsgd import train_privately
from securefl.training.private_layers import make_private
from securefl.training.profiling import outputs
from securefl.training.row_wise import outside

FEATURES, CLASSES, CODES, PLACES = 8, 3, 5, 6
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(40, FEATURES)).astype(np.float32)
PLACED = RNG.normal(size=(40, PLACES, FEATURES)).astype(np.float32)
TEXT = RNG.integers(0, CODES, size=(40, PLACES))
IMAGES = RNG.normal(size=(40, 2, 8, 8)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, 40)
CLIP = 0.7
summed = partial(tiny_dpsgd.summed, clip_norm=CLIP)


def moves(model: nn.Module, x: Any, y: Any) -> list[float]:
    """How far removing the first, a middle and the last record moves the sum, in clipping norms."""
    whole = summed(model, x, y)
    return [
        float(np.linalg.norm(whole - summed(model, np.delete(x, at, 0), np.delete(y, at)))) / CLIP
        for at in (0, len(x) // 2, len(x) - 1)
    ]


class Net(nn.Module):
    """Two dense layers, and `change` of a record's values before them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)

    def change(self, x: Tensor) -> Any:
        return x

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.relu(self.first(self.change(x))))


def net(**change: Any) -> type[Net]:
    """A model of this name, and its `change`."""
    ((name, own),) = change.items()
    return type(name, (Net,), {"change": own})


# Accepted ---------------------------------------------------------------------------------------------


class Chosen(Net):
    def change(self, x: Tensor) -> Tensor:
        return torch.where(x.mean(1, keepdim=True) > 0, x, -x)


class Sharing(Net):
    """Puts out a view of the memory it computed in."""

    def forward(self, x: Tensor) -> Any:
        return torch.cat([super().forward(x), x], dim=1)[:, :CLASSES]


class Elsewhere(Net):
    """Uses a layer's weight, but not the layer."""

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.relu(x @ self.first.weight.T))


def repeated() -> nn.Module:
    """Listed layers of which one is used twice, and two have one weight."""
    first, last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
    last.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), first, nn.Tanh(), last, nn.Linear(FEATURES, CLASSES))


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    model.get_parameter("0.bias").requires_grad_(False)
    model.get_submodule("2").requires_grad_(False)
    model.get_parameter("4.weight").requires_grad_(False)
    return model


class Flattening(nn.Module):
    """Its layer's rows are not records."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(2, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.last(x.reshape(-1, 2)).view(len(x), FEATURES // 2, CLASSES).sum(1)


class Straight(torch.autograd.Function):
    """Rounds, and lets the slope through."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope


class Rounding(Net):
    def forward(self, x: Tensor) -> Any:
        return self.last(Straight.apply(self.first(x)))


TABLE = torch.linspace(-1, 1, FEATURES)


class OfATable(Net):
    """Uses a constant that no layer holds, and one that a first pass makes."""

    made: Tensor | None = None

    def change(self, x: Tensor) -> Tensor:
        if self.made is None:
            self.made = torch.ones(FEATURES)
        return x * TABLE * self.made


class Hiding(Net):
    """Keeps the last made-up chunk where no attribute, closure or global of its own leads."""

    def change(self, x: Tensor) -> Tensor:
        threading.current_thread().__dict__["kept"] = x * 2
        return x


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(FEATURES, 2, 16, dropout, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x).mean(1))


class Reading(nn.Module):
    """A recurrent layer over places, or over the places of a text."""

    def __init__(self, kind: Any, *, text: bool = False, first: bool = True, **settings: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CODES, FEATURES) if text else nn.Identity()
        self.body = kind(FEATURES, 5, batch_first=first, **settings)
        self.head = nn.Linear(5 * (2 if settings.get("bidirectional") else 1), CLASSES)
        self.first = first

    def forward(self, x: Tensor) -> Any:
        values = self.embedding(x)
        found = self.body(values if self.first else values.transpose(0, 1))[0]
        return self.head(found[:, -1] if self.first else found[-1])


class OddAttention(nn.Module):
    """Rows of attention whose width is no multiple of a line."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.MultiheadAttention(6, 2, batch_first=True)
        self.first, self.last = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        return self.last(self.body(x, x, x, need_weights=False)[0].mean(1))


class TiedWords(nn.Module):
    """A table of codes that is also a dense layer's weights, and a layer of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.back = nn.Embedding(CODES, FEATURES), nn.Linear(FEATURES, CODES, bias=False)
        self.back.weight = self.words.weight
        self.body = nn.LSTM(FEATURES, FEATURES, batch_first=True)
        self.again, self.head = self.body, nn.Linear(CODES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.back(self.again(self.body(self.words(x))[0])[0][:, -1]))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(CODES, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.words(x))


def unsampled() -> nn.Module:
    """Row-wise layers for which Opacus has no sampler."""
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.PReLU(6), nn.RMSNorm(6), nn.Linear(6, CLASSES))


class OfInstances(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.norm, self.head = nn.InstanceNorm1d(PLACES, **settings), nn.Linear(PLACES * FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(x).flatten(1))


ACCEPTED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "plain": (Net, ROWS),
    # Each record by its own largest value: what `x / x.max()` would be for a record.
    "own maximum": (net(ByItself=lambda self, x: x / x.abs().amax(1, keepdim=True)), ROWS),
    "where": (Chosen, ROWS),
    "sorted values": (net(SortedValues=lambda self, x: x.sort(1).values), ROWS),
    # Changes its input in place, before anything needs it.
    "in place": (net(Overwriting=lambda self, x: x.mul_(2).sub_(1)), ROWS),
    "shared memory": (Sharing, ROWS),
    "elsewhere": (Elsewhere, ROWS),
    "flattening": (Flattening, ROWS),
    "straight through": (Rounding, ROWS),
    "constants": (OfATable, ROWS),
    "hidden": (Hiding, ROWS),
    "transformer": (Attention, PLACED),
    "odd attention": (OddAttention, PLACED),
    "lstm": (lambda: Reading(nn.LSTM, num_layers=2, bidirectional=True), PLACED),
    "gru": (lambda: Reading(nn.GRU), PLACED),
    "gru, places first": (lambda: Reading(nn.GRU, first=False), PLACED),
    "rnn": (lambda: Reading(nn.RNN, nonlinearity="relu"), PLACED),
    "text lstm": (lambda: Reading(nn.LSTM, text=True), TEXT),
    "tied words": (TiedWords, TEXT),
    "bag of words": (Bag, TEXT),
    "instance norm": (OfInstances, PLACED),
    "no sampler": (unsampled, ROWS),
    "used twice": (Twice, ROWS[:, :4]),
    "own layer": (Own, ROWS[:, :4]),
    "circular": (
        lambda: nn.Sequential(
            nn.Conv1d(PLACES, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(24, CLASSES)
        ),
        PLACED,
    ),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "dense": (
        lambda: nn.Sequential(
            nn.Linear(FEATURES, 6), nn.GELU(), nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.Linear(6, CLASSES)
        ),
        ROWS,
    ),
    "convolving": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
        ),
        IMAGES,
    ),
    "text": (
        lambda: nn.Sequential(nn.Embedding(CODES, 4), nn.Flatten(), nn.Linear(4 * PLACES, CLASSES)),
        TEXT,
    ),
    "padded text": (
        lambda: nn.Sequential(
            nn.Embedding(CODES, 4, padding_idx=0), nn.Flatten(), nn.Linear(4 * PLACES, CLASSES)
        ),
        TEXT,
    ),
    "norms": (
        lambda: nn.Sequential(nn.InstanceNorm1d(PLACES), nn.Flatten(), nn.Linear(PLACES * FEATURES, CLASSES)),
        PLACED,
    ),
    "repeated": (repeated, ROWS),
    "half frozen": (half_frozen, ROWS),
    "changed in place": (
        lambda: nn.Sequential(nn.Linear(8, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES, bias=False)),
        ROWS,
    ),
    "places": (
        lambda: nn.Sequential(nn.Linear(FEATURES, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, CLASSES)),
        PLACED,
    ),
    "pools that take rows for channels": (
        lambda: nn.Sequential(nn.MaxPool2d((3, 1), 1, (1, 0)), nn.Flatten(), nn.Linear(48, CLASSES)),
        PLACED,
    ),
}


@pytest.mark.parametrize("case", [*ACCEPTED, *LAYERS])
def test_what_is_accepted_sums_its_records_one_by_one(case: str) -> None:
    make, x = (ACCEPTED | LAYERS)[case]
    model, _ = make_private(seeded(make))
    assert bool(outside(model.train())) == (case in ACCEPTED)
    found, expected = (
        summed(model, x, LABELS),
        summed_by_hand(model, x, LABELS, clip_norm=CLIP, loss=cross_entropy),
    )
    assert np.linalg.norm(found - expected) <= 1e-4 * np.linalg.norm(expected)
    assert max(moves(model, x, LABELS)) <= 1 + 1e-6  # read off float32 parameters


def reads(model: nn.Module) -> list[Callable[[Any], Any]]:
    """What is read of rows of records beside their gradients."""
    layer = "last" if hasattr(model, "last") else "head"
    return [
        lambda rows: outputs(model, layer, rows),
        lambda rows: body_features(model, rows),
        lambda rows: record_losses(model, rows, LABELS[: len(rows)], "cross_entropy"),
    ]


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in ACCEPTED
        if case not in ("shared memory", "flattening", "no sampler", "own layer", "circular")
    ],
)
def test_what_is_accepted_is_read_one_by_one(case: str) -> None:
    make, x = ACCEPTED[case]
    model, _ = make_private(seeded(make))
    read = reads(model)
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(x.copy())).numpy()
    np.testing.assert_allclose(read[0](x), expected, atol=1e-5)
    for one in read:
        np.testing.assert_array_equal(one(x)[:7], one(x[:7]))


# Dropout and other draws ------------------------------------------------------------------------------


class Noisy(Net):
    def change(self, x: Tensor) -> Tensor:
        return x + 0.3 * torch.randn_like(x) + torch.rand(1, FEATURES) if self.training else x


class Gumbel(Net):
    def change(self, x: Tensor) -> Tensor:
        return functional.gumbel_softmax(x) if self.training else x.softmax(1)


DRAWING: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "dropout": (lambda: nn.Sequential(nn.Linear(FEATURES, 9), nn.Dropout(), nn.Linear(9, CLASSES)), ROWS),
    "alpha": (
        lambda: nn.Sequential(nn.Linear(FEATURES, 9), nn.AlphaDropout(0.4), nn.Linear(9, CLASSES)),
        ROWS,
    ),
    "channels": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.4), nn.Flatten(), nn.Linear(144, CLASSES)),
        IMAGES,
    ),
    "transformer": (lambda: Attention(0.3), PLACED),
    "lstm": (lambda: Reading(nn.LSTM, num_layers=2, dropout=0.3), PLACED),
    "noise": (Noisy, ROWS),
    "gumbel": (Gumbel, ROWS),
    # Dropout as a GPU computes it.
    "fused": (net(Fused=lambda self, x: torch.native_dropout(x, 0.4, self.training)[0]), ROWS),
    "packaged": (
        lambda: ModelConfig(kind="mlp", hidden=(9, 9), dropout=0.4).build((FEATURES,), CLASSES, 0),
        ROWS,
    ),
    "crops": (
        lambda: ModelConfig(kind="mlp", augment="crops-flips").build(IMAGES.shape[1:], CLASSES, 0),
        IMAGES,
    ),
    "crops, a record at a time": (
        lambda: nn.Sequential(Augmented(flips=True), nn.Flatten(), nn.Linear(128, FEATURES), Gumbel()),
        IMAGES,
    ),
}


@pytest.mark.parametrize("case", DRAWING)
def test_a_records_draws_are_its_own(case: str) -> None:
    make, x = DRAWING[case]
    model, _ = make_private(seeded(make))
    assert max(moves(model, x, LABELS)) <= 1 + 1e-6
    once, again, other = (summed(model, x, LABELS, key=key) for key in (b"a", b"a", b"b"))
    np.testing.assert_array_equal(once, again)
    assert np.linalg.norm(once - other) > 0.1 * CLIP


@pytest.mark.parametrize("case", DRAWING)
def test_the_public_stream_has_no_part_in_masks(case: str) -> None:
    make, x = DRAWING[case]
    model, _ = make_private(seeded(make))
    found = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            found.append(summed(model, x, LABELS))
            assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(*found)


def test_four_hundred_records_under_dropout_move_by_one_clipping_norm() -> None:
    """Masks by row from one stream: removing the first record moved the sum by 20.9 clipping norms."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(400, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, 400)
    model = seeded(DRAWING["dropout"][0])
    whole = summed(model, x, y)
    for at in (0, 399):
        moved = np.linalg.norm(whole - summed(model, np.delete(x, at, 0), np.delete(y, at)))
        assert moved <= CLIP * (1 + 1e-5)


def test_masks_drop_their_share() -> None:
    """400 records of 200 values: 0.01 is nine deviations, 1e-18 for a wrong alarm."""
    model = nn.Sequential(nn.Linear(200, 200), nn.Dropout(0.3), nn.Linear(200, CLASSES))
    from securefl.training.draws import DrawCount, TapeReader, tape_of

    x = torch.randn(400, FEATURES, generator=torch.Generator().manual_seed(0))
    tape = tape_of(x, torch.zeros(400, dtype=torch.int64), DrawCount(uniform=200), SecretKey(b"m" * 32))
    from securefl.training.draws import Drawing

    with Drawing(TapeReader(tape, 400)):
        found = model[1].train()(torch.ones(400, 200))
    assert abs(float((found == 0).double().mean()) - 0.3) < 0.01
    assert torch.allclose(found[found > 0], torch.tensor(1 / 0.7))


# Refused ----------------------------------------------------------------------------------------------


class CentredText(nn.Module):
    """Batch norm by hand over the embeddings of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(CODES, 4), nn.Linear(4 * PLACES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        found = self.embedding(x).flatten(1)
        return self.head((found - found.mean(0)) / (found.var(0, unbiased=False) + 1e-5).sqrt())


class Seen(Net):
    """Keeps the last chunk, and shifts by it."""

    seen: Any = None

    def change(self, x: Tensor) -> Tensor:
        before, self.seen = self.seen, x
        return x if before is None else x + before


class Buffered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(FEATURES))

    def change(self, x: Tensor) -> Tensor:
        self.seen = x.mean(0)
        return x + self.seen


class Added(Buffered):
    def change(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x + self.seen


class Counted(Net):
    passes = 0

    def change(self, x: Tensor) -> Tensor:
        Counted.passes += 1
        return x * Counted.passes


COUNT = 0
KEPT: list[Tensor] = []


class Global(Net):
    def change(self, x: Tensor) -> Tensor:
        global COUNT
        COUNT += 1
        return x * COUNT


class Listing(Net):
    def change(self, x: Tensor) -> Tensor:
        KEPT.append(x)
        return x + KEPT[0] if len(KEPT) > 1 else x


def closing() -> nn.Module:
    kept: list[Tensor] = []

    class Closed(Net):
        def change(self, x: Tensor) -> Tensor:
            kept.append(x)
            return x + kept[0]

    return Closed()


class OwnGenerator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def change(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * torch.bernoulli(torch.full_like(x, 0.5), generator=self.generator)


class OwnRule(torch.autograd.Function):
    """Its vmap rule sees the whole chunk."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return x + x.mean(in_dims[0], keepdim=True), in_dims[0]


class NoRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope


class Unwrapping(Net):
    def change(self, x: Tensor) -> Tensor:
        inner = x
        while torch._C._functorch.is_functorch_wrapped_tensor(inner):
            inner = torch._C._functorch.get_unwrapped(inner)
        return x + inner.mean()


class Overwritten(Net):
    """Changes a value that its gradient needs."""

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        found = self.last(torch.tanh(hidden).mul_(2).exp())
        self.last.weight.mul_(0.9)
        return found


class OwnTable(nn.Module):
    """Drops entries of a table for each record: torch looks all tables up as one."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.last = nn.Embedding(CODES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.last(functional.embedding(x, functional.dropout(self.codes.weight)).mean(1))


class Filled(nn.Module):
    """Fills a place that the record names: torch fills that of the record before for -1."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(PLACES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.stack([(own * 1.0).index_fill(0, own[:1], 0.0) for own in x]))


class Aligned(nn.Module):
    """Its kernel reads beyond a record's own part for a negative target."""

    def __init__(self) -> None:
        super().__init__()
        # More codes than are made up: it has no embedding that tells how many it knows.
        self.scale, self.last = nn.Linear(20, 20), nn.Linear(1, CLASSES)

    def forward(self, x: Tensor) -> Any:
        odds = self.scale(torch.eye(20)[x]).log_softmax(-1).transpose(0, 1)
        places, targets = (torch.full((len(x),), count) for count in (PLACES, 2))
        return self.last(functional.ctc_loss(odds, x[:, :2], places, targets, reduction="none")[:, None])


class Unset(Net):
    """Reads memory that nothing was written to, only of a record that is not a number."""

    def change(self, x: Tensor) -> Tensor:
        return torch.where(x.isnan(), x.new_empty(x.shape), x)


def test_memory_that_is_not_set_has_nothing_of_other_records() -> None:
    x = np.concatenate([ROWS, ROWS])
    x[-1] = np.nan
    found = []
    for scale in (1.0, 7.0, 1e3):
        beside = x.copy()
        beside[:-1] *= scale
        found.append(record_losses(seeded(Unset), beside, np.tile(LABELS, 2), "cross_entropy")[-1])
    zeros = np.concatenate([x[:-1], np.zeros_like(x[-1:])])
    assert found == [record_losses(seeded(Unset), zeros, np.tile(LABELS, 2), "cross_entropy")[-1]] * 3


REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)),
        ROWS,
        "make_private",
    ),
    "instance norm": (lambda: OfInstances(track_running_stats=True), PLACED, "keep records apart, got norm"),
    "largest": (net(Largest=lambda self, x: x / x.abs().max()), ROWS, "a batch .* Largest"),
    "deciding": (
        net(Deciding=lambda self, x: x if x.mean() > 0 else -x),
        ROWS,
        "Deciding .*branch on values",
    ),
    "threshold": (
        net(Threshold=lambda self, x: torch.where(x.max() > 500, -x, x)),
        ROWS,
        "a batch .* Threshold",
    ),
    "sorted rows": (net(SortedRows=lambda self, x: x[x[:, 0].argsort()]), ROWS, "a batch .* SortedRows"),
    "attention over rows": (
        net(OverRows=lambda self, x: torch.softmax(x @ x.T, 1) @ x),
        ROWS,
        "a batch .* OverRows",
    ),
    # Batch norm by hand, in training alone.
    "centred": (
        net(
            Centred=lambda self, x: (
                (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt() if self.training else x
            )
        ),
        ROWS,
        "a batch .* Centred",
    ),
    "centred text": (CentredText, TEXT, "a batch .* CentredText"),
    "seen": (Seen, ROWS, "'seen'"),
    "buffer": (Buffered, ROWS, "changes, got a parameter or buffer"),
    "adding buffer": (Added, ROWS, "in place"),
    "class counter": (Counted, ROWS, "the same results .* Counted"),
    "global counter": (Global, ROWS, "the same results .* Global"),
    "global list": (Listing, ROWS, "Listing"),
    "closure": (closing, ROWS, "Closed"),
    "own generator": (OwnGenerator, ROWS, "bernoulli.default of its own"),
    "numpy": (
        net(NumpyNoise=lambda self, x: x * float(np.random.random()) if self.training else x),  # noqa: NPY002
        ROWS,
        "the same results .* NumpyNoise",
    ),
    "python": (
        net(PythonNoise=lambda self, x: x * random.random() if self.training else x),
        ROWS,
        "the same results .* PythonNoise",
    ),
    # Draws from the operating system, whose state nobody can look at.
    "operating system": (
        net(SystemNoise=lambda self, x: x * (1 + os.urandom(1)[0]) if self.training else x),
        ROWS,
        "the same results .* SystemNoise",
    ),
    "own rule": (net(Ruling=lambda self, x: OwnRule.apply(x)), ROWS, "OwnRule"),
    "no rule": (net(Unruled=lambda self, x: NoRule.apply(x)), ROWS, "setup_context"),
    "values": (net(Values=lambda self, x: x * float(x.max())), ROWS, "Values .*branch on values"),
    "printing": (net(Printing=lambda self, x: x * len(str(x))), ROWS, "Printing"),
    "unwrapping": (Unwrapping, ROWS, "every place .* Unwrapping"),
    "parameters in place": (Overwritten, ROWS, "(?i)in.?place"),
    "a table for each record": (OwnTable, TEXT, "embedding of each record's own"),
    "a filled place": (Filled, TEXT, "index_fill"),
    "an alignment": (Aligned, TEXT, "ctc_loss"),
    # Takes a weight for a number: the graph would keep it for good.
    "its own weight as a number": (
        net(ReadingItself=lambda self, x: x / self.first.weight.norm().item()),
        ROWS,
        "`item`",
    ),
    "gru without batch_first": (lambda: Rowless(nn.GRU), PLACED, "a batch .* Rowless"),
}


class Rowless(nn.Module):
    """Takes rows for places: each record is read behind the one before it."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.body, self.head = kind(FEATURES, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x)[0].mean(1))


@pytest.mark.parametrize("case", REFUSED)
def test_what_mixes_records_is_refused_by_name(case: str) -> None:
    make, x, message = REFUSED[case]
    KEPT.clear()
    model = seeded(make)
    if "gru" in case:
        model, _ = make_private(model)
    before = to_vector(model, statistics=True)
    with pytest.raises(ConfigError, match=message):
        train_privately(
            model, x, LABELS, config(sampling_rate=1.0, noise_multiplier=1.0), "cross_entropy", Source()
        )
    np.testing.assert_array_equal(to_vector(model, statistics=True), before)


@pytest.mark.parametrize(
    "case",
    [
        "largest",
        "threshold",
        "sorted rows",
        "attention over rows",
        "centred text",
        "deciding",
        "seen",
        "global counter",
        "printing",
    ],
)
def test_what_mixes_records_is_not_read_either(case: str) -> None:
    """However many records there are: a refusal that hangs on records would reveal them."""
    make, x, message = REFUSED[case]
    for count in (0, 1, len(x)):
        for place in range(3):
            KEPT.clear()
            if count or place:  # without records there is nothing to profile
                with pytest.raises(ConfigError, match=message):
                    reads(seeded(make))[place](x[:count])


def test_an_operator_of_others_is_refused() -> None:
    """A registered operator may have a rule that sees the whole chunk."""

    @torch.library.custom_op("securefl_tests::shifted", mutates_args=())
    def shifted(x: Tensor) -> Tensor:
        return x + 1

    shifted.register_autograd(lambda ctx, slope: slope)

    @shifted.register_vmap
    def rule(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return x + x.mean(in_dims[0], keepdim=True), in_dims[0]

    class Registered(Net):
        def change(self, x: Tensor) -> Tensor:
            return shifted(x)

    class Out(Net):
        """Calls it where no function of torch is looked at."""

        def change(self, x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                return torch.ops.securefl_tests.shifted(x)

    with pytest.raises(ConfigError, match="got the operator securefl_test"):
        summed(Registered(), ROWS, LABELS)
    with pytest.raises(ConfigError, match=r"every place .* Out"):
        summed(Out(), ROWS, LABELS)


def test_no_step_of_a_brought_model_loads_torchs_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes most of a first step."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    monkeypatch.delattr(torch, "_dynamo", raising=False)
    assert np.isfinite(summed(seeded(Noisy), ROWS, LABELS)).all()


# What code keeps --------------------------------------------------------------------------------------


class Scaling(Net):
    """Changes its scale by what it keeps, late and by little."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = {"passes": 0}
        self.random = np.random.default_rng(0)
        self.register_buffer("centre", torch.zeros(FEATURES))

    def scale(self) -> Any:
        raise NotImplementedError

    def change(self, x: Tensor) -> Tensor:
        return x * self.scale()


class Warming(Scaling):
    """Counts passes in a dictionary, and changes after twelve."""

    def scale(self) -> Any:
        self.kept["passes"] += 1
        return 1.0 if self.kept["passes"] < 12 else 2.0


class Skipping(Scaling):
    """Leaves its input out in one of eight passes, by a generator of its own."""

    def scale(self) -> Any:
        return float(self.random.random() > 0.125)


class Ageing(Scaling):
    """Changes a buffer in place, past its version."""

    def scale(self) -> Any:
        self.centre.data += 0.01
        return 1 + self.centre


class Waiting(Scaling):
    """Counts passes in a buffer, and changes after twenty-five."""

    def scale(self) -> Any:
        self.centre.add_(1)
        return torch.where(self.centre < 25, 1.0, 2.0)


class Following(Scaling):
    """Keeps a running mean that it does not use in training."""

    def change(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.detach().mean(0)
        return x


class Banking(Scaling):
    """Keeps the records of all passes in a list, and adds one that is long past."""

    def change(self, x: Tensor) -> Tensor:
        bank = self.kept.setdefault("bank", [])
        bank.append(x.detach())
        return x + bank[-12] if len(bank) > 12 else x


class Printed(Scaling):
    def change(self, x: Tensor) -> Tensor:
        return x * (1 + len(f"{x}") % 2)


KEEPING = [Warming, Skipping, Ageing, Waiting, Following, Banking, Printed]
MANY, OF_MANY = np.repeat(ROWS, 24, 0), np.repeat(LABELS, 24)


@pytest.mark.parametrize("kind", KEEPING)
def test_what_code_keeps_carries_no_record_into_another_pass(kind: Callable[[], nn.Module]) -> None:
    """Refused, or each record's gradient is that of the first pass: in every batch, chunk and step."""
    model = seeded(kind)
    try:
        once = summed(model, ROWS, LABELS)
    except ConfigError:
        return
    np.testing.assert_allclose(summed(model, MANY, OF_MANY), 24 * once, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(summed(model, ROWS, LABELS), once)
    assert max(moves(model, MANY, OF_MANY)) <= 1 + 1e-6


@pytest.mark.parametrize("kind", KEEPING)
def test_what_code_keeps_carries_no_record_into_what_is_read(kind: Callable[[], nn.Module]) -> None:
    model = seeded(kind)
    try:
        once = record_losses(model, ROWS, LABELS, "cross_entropy")
    except ConfigError:
        return
    found = record_losses(model, MANY, OF_MANY, "cross_entropy")
    np.testing.assert_array_equal(found, np.repeat(once, 24))


# Listed layers and their traps ------------------------------------------------------------------------


class Sub(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    model[0].register_forward_pre_hook(lambda _, given: (given[0] / given[0].abs().max(),))
    return model


def slope_hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    model[0].register_full_backward_hook(lambda *_: None)
    return model


def parameter_hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    model[0].weight.register_hook(lambda slope: slope)
    return model


def parametrized() -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    nn.utils.parametrizations.weight_norm(model[0])
    return model


def replaced() -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    own = model[0].forward
    model[0].forward = lambda x: own(x / x.abs().max())
    return model


ON_THE_WAY: dict[str, Callable[[], nn.Module]] = {
    "subclass": lambda: nn.Sequential(Sub(FEATURES, CLASSES)),
    "hook": hooked,
    "backward hook": slope_hooked,
    "hook on a parameter": parameter_hooked,
    "parametrization": parametrized,
    "replaced forward": replaced,
    "own sequence": lambda: type("Mine", (nn.Sequential,), {})(nn.Linear(FEATURES, CLASSES)),
    "clipped embedding": lambda: nn.Sequential(nn.Embedding(CODES, 4, max_norm=1.0)),
    "scaled embedding": lambda: nn.Sequential(nn.Embedding(CODES, 4, scale_grad_by_freq=True)),
    "softmax without a dimension": lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Softmax(None)),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(FEATURES)),
    "no sampler": lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.PReLU()),
    "circular padding": lambda: nn.Sequential(nn.Conv1d(PLACES, 3, 3, padding=1, padding_mode="circular")),
    "lstm": lambda: nn.Sequential(nn.LSTM(FEATURES, 3, batch_first=True)),
}


@pytest.mark.parametrize("case", ON_THE_WAY)
def test_what_only_looks_like_a_listed_layer_is_not_one(case: str) -> None:
    assert outside(ON_THE_WAY[case]().train())


def test_hooks_for_all_modules_leave_no_listed_model() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    assert not outside(model)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert outside(model)
    finally:
        handle.remove()
    assert not outside(model)


MISREAD: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "norm over rows": (
        lambda: nn.Sequential(nn.LayerNorm((64, FEATURES)), nn.Linear(FEATURES, CLASSES)),
        ROWS,
    ),
    "flat rows": (
        lambda: nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (64, FEATURES)), nn.Linear(FEATURES, CLASSES)),
        ROWS,
    ),
    "flat from behind": (
        lambda: nn.Sequential(
            nn.Flatten(-2, -1), nn.Unflatten(0, (64, FEATURES)), nn.Linear(FEATURES, CLASSES)
        ),
        ROWS,
    ),
    "softmax over rows": (lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Softmax(0)), ROWS),
    "softmax from behind": (lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.LogSoftmax(-2)), ROWS),
    "gated rows": (lambda: nn.Sequential(nn.GLU(0), nn.Linear(FEATURES, CLASSES)), ROWS),
    "rows as channels": (lambda: nn.Sequential(nn.Conv1d(64, 64, 1), nn.Linear(FEATURES, CLASSES)), ROWS),
    "a weight for each row": (
        lambda: nn.Sequential(nn.InstanceNorm1d(64, affine=True), nn.Linear(FEATURES, CLASSES)),
        ROWS,
    ),
}


@pytest.mark.parametrize("case", MISREAD)
def test_a_listed_layer_that_takes_rows_for_something_else_is_refused(case: str) -> None:
    make, x = MISREAD[case]
    model = seeded(make)
    assert not outside(model)
    with pytest.raises(ConfigError):
        train_privately(model, x, LABELS, config(chunk=64), "cross_entropy", Source())
    with pytest.raises(ConfigError):
        record_losses(model, x, LABELS, "cross_entropy")


def test_a_trained_layer_whose_rows_are_no_records_is_refused() -> None:
    """A batch is computed as its records one by one, and yet a row of the layer is a place of a record."""
    rest = nn.Unflatten(0, (-1, PLACES)), nn.Flatten(), nn.Linear(PLACES * 3, CLASSES)
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(FEATURES, 3), *rest)
    for count in (0, 40):  # a refusal that hangs on records would reveal them
        with pytest.raises(ConfigError, match="one row a record"):
            summed(model, PLACED[:count], LABELS[:count])
    model[1].requires_grad_(False)
    assert max(moves(model, PLACED, LABELS)) <= 1 + 1e-6


# A record that a kernel refuses -----------------------------------------------------------------------

WITH_CODES = {
    **{name: ACCEPTED[name] for name in ("text lstm", "tied words", "bag of words")},
    "text": LAYERS["text"],
}


@pytest.mark.parametrize("case", WITH_CODES)
def test_a_code_beyond_the_embedding_counts_as_zero(case: str) -> None:
    make, x = WITH_CODES[case]
    model, _ = make_private(seeded(make))
    spoilt = x.copy()
    spoilt[[3, 39], 2] = CODES, -1
    clean, labels = np.delete(spoilt, [3, 39], 0), np.delete(LABELS, [3, 39])
    # sums are read off float32 parameters of up to 32, at a scale of 2^-10
    np.testing.assert_allclose(summed(model, spoilt, LABELS), summed(model, clean, labels), atol=1e-8)
    assert np.isfinite(summed(model, spoilt[3:4], LABELS[3:4])).all()
    losses = record_losses(model, spoilt, LABELS, "cross_entropy")
    assert np.flatnonzero(np.isnan(losses)).tolist() == [3, 39]
    np.testing.assert_array_equal(
        np.delete(losses, [3, 39]), record_losses(model, clean, labels, "cross_entropy")
    )
    assert np.isnan(outputs(model, "2" if case == "text" else "head", spoilt)[[3, 39]]).all()


def test_what_public_records_raise_is_the_models_fault() -> None:
    with pytest.raises(ConfigError, match="made-up records"):
        summed(Net(), ROWS[:, :5], LABELS)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_record_that_is_not_finite_counts_as_zero(bad: float) -> None:
    assert moved_by(bad) < 1e-9


def test_a_record_whose_norm_leaves_float32_is_clipped() -> None:
    """Its gradient is finite, so it counts as any other record."""
    assert 0.9 * CLIP < moved_by(3e38) <= CLIP * (1 + 1e-6)  # read off parameters in float32


def moved_by(entry: float) -> float:
    """How far a record of these entries moves the sum."""
    model, spoilt = seeded(Chosen), ROWS.copy()
    spoilt[7] = entry
    without = summed(model, np.delete(spoilt, 7, 0), np.delete(LABELS, 7))
    return float(np.linalg.norm(summed(model, spoilt, LABELS) - without))


# In words ---------------------------------------------------------------------------------------------


def test_every_step_draws_its_masks_anew() -> None:
    make, x = DRAWING["dropout"]
    moved = []
    for steps in (1, 2):
        model, _ = make_private(seeded(make))
        before = flat(model)
        settings = config(sampling_rate=1.0, steps=steps, learning_rate=2.0**-10, expected_batch=1)
        train_privately(model, x, LABELS, settings, "cross_entropy", Silent(SecretKey(b"k" * 32)))
        moved.append(before - flat(model))
    # With one mask in both steps, two steps would move the model twice as far, to within a hundredth.
    assert np.linalg.norm(moved[1] - 2 * moved[0]) > 0.1 * np.linalg.norm(moved[0])


class Leaking(torch.autograd.Function):
    """A kernel whose gradient of a row has something of all rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return slope + 1e-3 * slope.mean(0)


KERNELS = [lambda x: x + 1e-3 * x.mean(0), lambda x: x + 1e-5 * x.mean(0), Leaking.apply]


@pytest.mark.parametrize("kernel", KERNELS, ids=["forward", "forward, by little", "back"])
def test_kernels_of_listed_layers_that_mix_rows_are_refused(
    kernel: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 9), nn.Tanh(), nn.Linear(9, CLASSES)))
    before = flat(model)
    monkeypatch.setattr(torch, "tanh", kernel)
    assert not outside(model)
    for read in (summed, lambda *given: record_losses(*given, "cross_entropy")):
        with pytest.raises(ConfigError):
            read(model, ROWS, LABELS)
        if kernel == Leaking.apply:
            break  # outputs are those of each record alone
    np.testing.assert_array_equal(flat(model), before)


def test_kernels_may_differ_where_both_overflow_and_nowhere_else() -> None:
    model, overflow = nn.Linear(1, 1), torch.tensor([[torch.inf, 0.0]])
    assert not isolation._compared(model, overflow, torch.tensor([[torch.inf, torch.nan]]))
    for together in (torch.tensor([[1.0, 0.0]]), overflow):
        with pytest.raises(ConfigError, match="one by one"):
            isolation._compared(model, together, torch.tensor([[1.0, torch.nan]]))


@every("weight", [torch.inf, torch.nan])
def test_the_attack_a_broadcast_that_overflows_is_kept_for_no_test(weight: float) -> None:
    """What was found is kept by layers and not by values: the next broadcast would go untested."""
    model = nn.Sequential(nn.Linear(1, 2), nn.Softmax(0))
    columns, layer = (torch.zeros(4, 1),), model.get_submodule("0")
    with torch.no_grad():
        layer.get_parameter("weight").fill_(weight)
        isolation.require_apart(model, "outputs", model, *columns, rows=4)
        layer.get_parameter("weight").fill_(1.0)
    with pytest.raises(ConfigError, match="one by one"):
        isolation.require_apart(model, "outputs", model, *columns, rows=4)
