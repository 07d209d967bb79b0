"""A generated grid of studies for the auditor: small ones, each with two neighbouring data sets.

A case is a level of each axis. `cases` covers every pair of levels of two axes that can stand together, and
fills up with further ones to `COUNT`. The same code gives the same cases on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, islice, product
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from support.auditor import Pair
from support.observed_runs import Records, Sent
from torch import Tensor, nn

from securefl.core.messages import client_name
from securefl.data import Dataset, Split

COUNT: Final = 200
QUICK: Final = 22
"""So many cases are enough for every level of every axis, and for `make test`: one a protocol."""
DELTA: Final = 1e-3
CLIENTS: Final = 4
EACH: Final = 8
"""Records of a client."""
DECLARED: Final = f"public_num_examples = {EACH}"
"""What a study says under [data] of its clients' numbers of records, which are private."""

LARGE: Final = 10**17
"""The first client's id in a typed file. float64 does not tell its neighbours apart."""

PROTOCOLS: Final[Mapping[str, str]] = {
    "fedavg": 'fraction = 1.0\naggregation = "partial"',
    "fedprox": "fraction = 1.0",
    "fedadam": "fraction = 1.0",
    "fedavg_rp": "fraction = 1.0",
    "lg_fedavg": "",
    "fedper": "",
    "fedrep": "head_epochs = 1\nhead_rate = 0.5",
    "fedbabu": "fine_tune_epochs = 1",
    "feddbe": "mean_bound = 4.0",
    "pfedme": "lamda = 1.0\npersonal_steps = 2\neta = 0.5",
    "stc": "fraction = 1.0\np = 0.1",
    "cs_fl": "fraction = 1.0\nsparsity = 0.02\nmeasurements = 0.5",
    "cfcfm": "fraction = 1.0",
    "fedprof": "fraction = 1.0\nalpha = 1.0\nclip = { outputs = 4.0, squares = 16.0 }",
    "active_fl": "fraction = 1.0\nloss_bound = 2.0",
    "pow_d": "fraction = 1.0\nloss_bound = 2.0",
    "fedcor": "fraction = 1.0\nwarm_up = 1\ninterval = 1\nupdates = 0\nsteps = 2\ndimension = 2\n"
    "loss_bound = 2.0",
    "fedlog": "",
    "fedproto": 'clip = { kind = "unit-l2" }',
    "heads": 'head = "prototypes"',
    "adds": "fraction = 1.0",
    "feddrop": "fraction = 1.0",
}
STATISTIC: Final = ("fedlog", "fedproto", "heads")
NUMBERS: Final = ("fedprof", "active_fl", "pow_d", "fedcor")
"""Protocols whose clients tell numbers beside their updates."""
SUBNETS: Final = ("adds", "feddrop")
KEEPS: Final = ("lg_fedavg", "fedper", "fedrep", "feddbe", "stc", "cs_fl", "fedproto")
"""Protocols whose clients keep state that no agreement binds."""
NOT_PRIVATELY: Final = (*SUBNETS, "feddbe", "fedproto", "pfedme")
"""Protocols whose training [dpsgd] has no form of, so that noise is of a client's whole value."""
AXES: Final[Mapping[str, Sequence[str]]] = {
    "protocol": tuple(PROTOCOLS),
    "source": ("digits", "table", "arrays", "text"),
    "split": ("test part", "test share", "holdout"),
    "model": ("mlp", "dense", "pictures", "words", "dropping"),
    "sum": ("clear", "masked", "ckks", "two-server"),
    "noise": ("dpsgd", "local", "distributed", "central", "key-holder"),
    "unit": ("record add-remove", "record replace-one", "client zero-out", "client replace-one"),
    "neighbour": ("first", "last", "far", "twin", "short", "only"),
}


class Case(NamedTuple):
    """A level of each axis.

    neighbour: "first" and "last" take that record of the first client away, or put another in its place;
    "far" is one far outside, "twin" one of two equal ones, "short" one of two records, "only" one that leaves
    its client without records to train on, where a hold-out or test share can do that.
    """

    protocol: str
    source: str
    split: str
    model: str
    sum: str
    noise: str
    unit: str
    neighbour: str

    @property
    def name(self) -> str:
        return "/".join(self)


def plausible(case: Case) -> bool:
    """Whether a study's own check may let these levels stand together. `hidden` tries the others."""
    per_client, averages = case.unit.startswith("client"), case.protocol not in STATISTIC
    return (
        _of_data(case)
        and _of_privacy(case)
        and (case.noise == "dpsgd") <= (case.protocol not in (*STATISTIC, *NUMBERS))
        and (case.protocol in NOT_PRIVATELY) <= per_client
        and (case.protocol in NUMBERS) <= (case.unit == "record add-remove")
        # private training is accounted for adding and removing alone
        and (case.unit == "record replace-one") <= (not averages)
        and shows(case)
    )


def _of_data(case: Case) -> bool:
    """The part of `plausible` that the first four axes decide."""
    return (
        (case.source == "text") == (case.model == "words")
        and (case.source == "digits" or case.model != "pictures")
        and (case.split == "test share") <= (case.source in ("table", "arrays"))
        and (case.protocol in SUBNETS) <= (case.model != "words")
    )


def _of_privacy(case: Case) -> bool:
    """The part that the last four decide."""
    return (
        (case.noise == "key-holder") <= (case.sum == "two-server")
        and (case.noise == "dpsgd") <= (case.unit == "record add-remove")
        and (case.unit.startswith("record") or case.neighbour in ("first", "far"))
    )


def shows(case: Case) -> bool:
    """Whether the neighbours are what their name says, under these levels."""
    if case.unit.startswith("client"):  # all of a client is replaced, and which record is odd does not matter
        return case.neighbour in ("first", "far")
    if case.neighbour == "only":
        return case.split == "holdout" and case.source != "text"
    return case.neighbour != "short" or case.source != "text"


@lru_cache
def cases() -> tuple[Case, ...]:
    """The grid: first what covers all pairs of levels, each with the most that are not yet covered."""
    chance = random.Random(34)
    axes = list(AXES.values())
    nothing = [""] * 4
    data = [own for own in product(*axes[:4]) if _of_data(Case(*own, *nothing))]
    privacy = [own for own in product(*axes[4:]) if _of_privacy(Case(*nothing, *own))]
    pool = [own for first, last in product(data, privacy) if plausible(own := Case(*first, *last))]
    chance.shuffle(pool)
    places = np.array([[axis.index(level) for axis, level in zip(axes, own, strict=True)] for own in pool])
    # A number for each pair of levels: 24 x 24 for each pair of axes.
    pairs_of = np.stack(
        [
            (which * 24 + places[:, one]) * 24 + places[:, other]
            for which, (one, other) in enumerate(combinations(range(len(axes)), 2))
        ],
        axis=1,
    )
    open_ = np.zeros(pairs_of.max() + 1, np.bool_)
    open_[pairs_of] = True
    chosen: list[int] = []
    while open_.any() and len(chosen) < COUNT:
        # a sample of the pool is as good as all of it, and a hundred times as fast
        some = chance.sample(range(len(pool)), min(400, len(pool)))
        best = some[int(open_[pairs_of[some]].sum(1).argmax())]
        if not open_[pairs_of[best]].any():
            best = int(open_[pairs_of].any(1).argmax())
        chosen.append(best)
        open_[pairs_of[best]] = False
    rest = (place for place in range(len(pool)) if place not in chosen)
    chosen += islice(rest, COUNT - len(chosen))
    return tuple(pool[place] for place in chosen)


@lru_cache
def quick() -> tuple[Case, ...]:
    """One case of each protocol, with the most levels that are still open.

    CKKS, and private training of a model of one's own, take as long as all others together, and stand in few.
    """
    open_ = {(axis, level) for axis, own in AXES.items() for level in own}

    def gain(case: Case) -> int:
        slow = (case.sum == "ckks") + (case.model != "mlp" and case.unit.startswith("record"))
        return len(open_ & {(axis, getattr(case, axis)) for axis in AXES}) - 2 * slow

    chosen = []
    for protocol in PROTOCOLS:
        best = max((case for case in cases() if case.protocol == protocol), key=gain)
        chosen.append(best)
        open_ -= {(axis, getattr(best, axis)) for axis in AXES}
    return tuple(chosen)


def pair_of(case: Case, sent: str = "") -> Pair:
    """The study and its neighbours. sent: a kind of `BROADCASTS`, or the server's own model."""
    one, other = neighbours(case)
    return Pair(
        text=text_of(case),
        one=one,
        other=other,
        name=f"{case.name} {sent}",
        delta=DELTA,
        model=MODELS.get(case.model),
        broadcast=BROADCASTS.get(sent),
    )


# Models -------------------------------------------------------------------------------------------

CODES: Final = 12
"""Codes that the models of text know."""


class Dense(nn.Module):
    """A layer and a head, with a `forward` of its own."""

    def __init__(self, inputs: int, outputs: int, width: int = 4) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(inputs, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x.flatten(1))))


class Pictures(nn.Sequential):
    """A small CNN of listed layers."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(
            nn.Conv2d(shape[0], 2, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8, outputs),
        )


class Words(nn.Module):
    """The mean of a text's embeddings, and a head."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(CODES, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


class Dropping(nn.Module):
    """A dense model with dropout."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(inputs, 8), nn.Dropout(0.5), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.body(x.flatten(1)))))


MODELS: Final[Mapping[str, Callable[..., Any]]] = {
    "dense": Dense,
    "pictures": Pictures,
    "words": Words,
    "dropping": Dropping,
}


# What a server sends in place of its model ---------------------------------------------------------


def _times(factor: float) -> Callable[[Sent], Sent]:
    return lambda own: (own.astype(np.float64) * factor).astype(np.float32)


def _any_bits(own: Sent) -> Sent:
    return np.random.default_rng(len(own)).integers(0, 2**32, len(own), dtype=np.uint32).view(np.float32)


def _scales(own: Sent) -> Sent:
    """Each value has a magnitude of its own, from denormals to 1e30."""
    return (own * 10 ** np.random.default_rng(len(own)).uniform(-44, 30, len(own))).astype(np.float32)


def _holed(own: Sent) -> Sent:
    """An infinity and a nan among values that stay."""
    found = own.copy()
    found[:1], found[len(own) // 2 : len(own) // 2 + 1] = np.inf, np.nan
    return found


BROADCASTS: Final[Mapping[str, Callable[[Sent], Sent]]] = {
    "1e-30": _times(1e-30),
    "denormal": _times(1e-42),
    "1e15": _times(1e15),
    "1e30": _times(1e30),
    "scales": _scales,
    "any bits": _any_bits,
    "not finite": _holed,
    "infinite": lambda own: np.full_like(own, np.inf),
}


# The study ----------------------------------------------------------------------------------------


def text_of(case: Case) -> str:
    """The study as TOML."""
    unit, adjacency = case.unit.split()
    averages = case.protocol not in STATISTIC
    private = unit == "record" and averages
    sections = [
        f'[study]\nname = "audited"\nrounds = {2 if case.protocol != "fedcor" else 1}\nseeds = [1]',
        _data(case),
        f"[model]\n{_model(case)}",
        f"""[local]
optimizer = "sgd"
learning_rate = 0.5
epochs = 1
batch_size = 4
{"update_bound = 1.0" if unit == "client" and averages else ""}""",
        _privacy(case, unit, adjacency),
        DPSGD if private else "",
        f'[[arm]]\nname = "x"\nprotocol = "{case.protocol}"\n{_options(case, unit)}\n',
    ]
    return "\n".join(sections)


DPSGD: Final = f"""[dpsgd]
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = 1.0
expected_batch = {EACH}
steps = 1
optimizer = "sgd"
learning_rate = 0.01
"""
"""Each step sees all records, and moves the model by little: its second round differs as the first."""


def _data(case: Case) -> str:
    files = {"table": "people.csv", "typed": "people.parquet"}
    table = case.source in files
    source = f'source = "{files.get(case.source, "digits")}"' if case.source not in ("arrays", "text") else ""
    own = {
        "table": 'target = "ill"\nclasses = [0, 1, 2]\nclient_column = "hospital"',
        "arrays": "classes = 3",
    }
    lines = [
        "[data]",
        source,
        own.get("table" if table else case.source, ""),
        DECLARED if case.source != "digits" else "",
        "holdout = 0.5" if case.split == "holdout" else "",
        "test_share = 0.3" if case.split == "test share" else "",
        'test = "test.csv"' if table and case.split != "test share" else "",
    ]
    if table:
        of = "h{}" if case.source == "table" else str(LARGE)[:-1] + "{}"
        names = ", ".join(f'"{of.format(number)}"' for number in range(CLIENTS))
        lines.append(f"[data.columns.hospital]\ncategories = [{names}]")
    return "\n".join(line for line in lines if line)


def _model(case: Case) -> str:
    if case.model != "mlp":
        return ""
    return 'kind = "mlp"\nhidden = ' + ("[]" if case.protocol == "heads" else "[4]")


def _options(case: Case, unit: str) -> str:
    bound = "\nclient_bound = 4.0" if unit == "client" and case.protocol in STATISTIC else ""
    # Of a hidden sum with central noise a server that lies learns what a client kept: the arm says so.
    keeps = case.protocol in KEEPS and unit == "client"
    reads = keeps and case.sum != "clear" and case.noise == "central"
    return PROTOCOLS[case.protocol] + bound + ("\naccepts_kept_state = true" if reads else "")


def _privacy(case: Case, unit: str, adjacency: str) -> str:
    together = case.sum != "clear" or case.noise == "distributed"
    adversaries = '"others"' if case.noise == "central" else '"server", "others"'
    noise = "none" if case.noise == "dpsgd" else case.noise
    lines = [
        "[privacy]",
        f'sum = "{case.sum}"',
        'scores = "clear"',
        f'noise = "{noise}"',
        ""
        if noise == "none"
        else f"epsilon = {4.0 if unit == 'client' or case.protocol in STATISTIC else 12.0}",
        f'unit = "{unit}"',
        f'adjacency = "{adjacency}"',
        f"delta = {DELTA}\nforce_delta = true",
        "budget = inf",
        f"adversaries = [{adversaries}]",
        "non_private = []",
        f"min_cohort_size = {CLIENTS}\nmin_honest = 2\nmax_client_weight = 0.6",
        "dropout = 0.0\ncorrupt = 0.0" if together else "",
        f"min_num_examples = {EACH // 2}\nmax_num_examples = {EACH}" if together else "",
    ]
    return "\n".join(line for line in lines if line)


# The records --------------------------------------------------------------------------------------

Client = tuple[NDArray[Any], NDArray[np.int64]]


def neighbours(case: Case) -> tuple[Records, Records]:
    """The two data sets of a case. They differ in one record of the first client, or in all of them."""
    rng = np.random.default_rng(7)
    clients = [some_client(case, rng, EACH) for _ in range(CLIENTS)]
    test = some_client(case, rng, 6)
    one, other = _apart(case, clients[0], rng)
    first, second = (records_of(case, [own, *clients[1:]], test) for own in (one, other))
    if case.unit == "client zero-out":
        return first, replace(first, nothing=client_name(0))
    return first, second


def some_client(case: Case, rng: np.random.Generator, count: int) -> Client:
    y = np.arange(count) % 3
    if case.source == "text":
        return rng.integers(0, CODES, (count, 5)), y
    shape = (1, 8, 8) if case.source == "digits" else (5,)
    return rng.normal(size=(count, *shape)).astype(np.float32) * 0.5, y


def _apart(case: Case, client: Client, rng: np.random.Generator) -> tuple[Client, Client]:
    """The first client's records on both sides. The second side has one less, or another."""
    x, y = (own.copy() for own in client)
    if case.unit.startswith("client"):
        # steep enough for its update to be clipped
        own = x if case.source == "text" else 10 * x
        return (_far(x) if case.neighbour == "far" else own, y), (_mirrored(own), (y + 1) % 3)
    if case.neighbour in ("short", "only"):
        x, y = x[:2], y[:2]
    place = len(x) - 1 if case.neighbour in ("last", "far") else 0
    if case.neighbour == "far":
        x[place] = _far(x[place])
    if case.neighbour == "twin":
        x[1], y[1] = x[0], y[0]
    if case.unit.endswith("replace-one"):
        changed, label = x.copy(), y.copy()
        changed[place], label[place] = _far(_mirrored(x[place])), (y[place] + 1) % 3
        return (x, y), (changed, label)
    return (x, y), (np.delete(x, place, 0), np.delete(y, place))


def _far(x: NDArray[Any]) -> NDArray[Any]:
    """Records far from all others; the other codes, of texts."""
    return CODES - 1 - x if x.dtype.kind == "i" else (x * 1e4).astype(x.dtype)


def _mirrored(x: NDArray[Any]) -> NDArray[Any]:
    return CODES - 1 - x if x.dtype.kind == "i" else -x


def records_of(case: Case, clients: Sequence[Client], test: Client) -> Records:
    """As this source takes them."""
    given = case.split != "test share"
    match case.source:
        case "table" | "typed":
            files = {"people.csv": pd.concat([_frame(own, k) for k, own in enumerate(clients)])}
            return Records(files=files | ({"test.csv": _frame(test, 0)} if given else {}))
        case "arrays":
            return Records(brought={"train": clients, "test": test} if given else clients)
        case "text":
            return Records(brought=split_of(clients, test, "text", 3))
    return Records(packaged=split_of(clients, test, "digits", 10))


def _frame(client: Client, number: int) -> pd.DataFrame:
    x, y = client
    found = pd.DataFrame({f"x{k}": column for k, column in enumerate(x.T)})
    return found.assign(ill=y, hospital=f"h{number}")


def split_of(clients: Sequence[Client], test: Client, name: str, classes: int) -> Split:
    x = np.concatenate([own for own, _ in clients])
    y = np.concatenate([own for _, own in clients])
    groups = np.repeat(np.arange(len(clients)), [len(own) for own, _ in clients])
    train = Dataset(name=name, x=x, y=y, classes=classes, groups=groups, holders=len(clients))
    return Split(train=train, test=Dataset(name=name, x=test[0], y=test[1], classes=classes))
