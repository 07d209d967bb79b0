"""Any module may be a study's model, if it is the same each time and nothing in it moves by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from support.tiny_problem import tiny_problem
from torch import Tensor, nn

from securefl.core.errors import ConfigError
from securefl.core.reading import convert
from securefl.training import (
    LocalTraining,
    ModelConfig,
    load_vector,
    size,
    to_vector,
    train,
    trained_state,
)
from securefl.training.jobs import readable
from securefl.training.models import MLP
from securefl.training.networks import digest_of
from securefl.training.own_models import OwnModel, OwnModelSection, section_of

SHAPE, OUTPUTS = (2, 3), 4


def of(factory: Any, **settings: Any) -> OwnModel:
    return OwnModel(factory=factory, name="mine", **settings).resolved(SHAPE, OUTPUTS, 7)


class Net(nn.Module):
    """Dense layers in a form that `changed` makes wrong."""

    def __init__(self, inputs: int = 6, outputs: int = 4, width: int = 5) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x.flatten(1)).relu())


def by_shape(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Net(int(np.prod(shape)), outputs)


def by_place(first: Any, second: Any) -> nn.Module:
    return Net(int(np.prod(first)), second)


FACTORIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "class": (Net, {}),
    "shape": (by_shape, {}),
    "by place": (by_place, {}),
    "nothing": (lambda: Net(), {}),
    "options": (Net, {"width": 3}),
    "anything": (lambda **given: Net(**given), {"width": 3}),
}


@pytest.mark.parametrize("form", FACTORIES)
def test_a_factory_is_given_what_it_asks_for(form: str) -> None:
    factory, options = FACTORIES[form]
    model = of(factory, options=options)
    module = model.build(SHAPE, OUTPUTS, 7)
    assert module(torch.zeros(3, *SHAPE)).shape == (3, OUTPUTS)
    assert isinstance(module, Net)
    assert module.first.out_features == options.get("width", 5)
    assert (model.layer, model.draws) == ("first", False)


def test_a_module_is_built_anew_with_its_values() -> None:
    own = Net()
    built = of(own).build(SHAPE, OUTPUTS, 7)
    assert built is not own
    assert np.array_equal(to_vector(built), to_vector(own))


def test_the_seed_fixes_the_values_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    model = of(Net)
    first, again, other = (to_vector(model.build(SHAPE, OUTPUTS, seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_the_profiled_layer_is_named_or_found() -> None:
    def convolutions(outputs: int) -> nn.Module:
        unfolded = nn.Unflatten(2, (3, 1))
        return nn.Sequential(unfolded, nn.Conv2d(2, 3, 1), nn.Conv2d(3, outputs, (3, 1)), nn.Flatten())

    assert of(convolutions).layer == "2"
    assert of(Net, profiled_layer="last").layer == "last"
    with pytest.raises(ConfigError, match="by `profiled_layer`"):
        of(lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten())).layer  # noqa: B018
    with pytest.raises(ConfigError, match="nearest names are last"):
        of(Net, profiled_layer="lsat")


def test_dropout_is_seen() -> None:
    assert of(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 4))).draws


def test_batch_norm_may_move_its_statistics() -> None:
    of(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 4)))


def test_batch_norm_that_counts_its_batches_is_refused() -> None:
    """A process's count is no part of the model: clients' averages would hang on who trained before them."""
    with pytest.raises(ConfigError, match="momentum in batch norm 1 "):
        of(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 4)))


def test_the_packages_own_stack_is_known_as_one() -> None:
    assert of(lambda inputs, outputs: MLP(inputs, outputs, (5, 3))).hidden == (5, 3)
    assert of(lambda inputs, outputs: MLP(inputs, outputs, ())).hidden == ()
    assert of(type("Mine", (MLP,), {})).hidden is None


class Counting(Net):
    def __init__(self, kind: torch.dtype = torch.int64, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=kind), persistent=persistent)

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        return super().forward(x)


class Averaging(Net):
    """What it keeps stays zero as long as records are zeros."""

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        if registered:
            self.register_buffer("mean", torch.zeros(SHAPE), persistent=False)
        else:
            self.mean = torch.zeros(SHAPE)

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x - self.mean)


class Largest(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.largest = torch.maximum(self.largest, x.max().long())
        return super().forward(x)


class TiedValues(Net):
    def __init__(self) -> None:
        super().__init__(6, 6, 6)
        self.last.weight = self.first.weight


class HalfTied(TiedValues):
    """Two parameters on one memory, one of them frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.last.weight = nn.Parameter(self.first.weight.detach(), requires_grad=False)


class Overlapping(Net):
    """A frozen parameter that begins inside a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(self.first.weight.detach()[1:], requires_grad=False)


class Interleaved(Net):
    """Two parameters that share no value, in one stretch of memory."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.zeros(5, 2)
        self.one, self.other = nn.Parameter(both[:, 0]), nn.Parameter(both[:, 1])


class Repeated(Net):
    """A parameter of which all values are one place of memory."""

    def __init__(self, clone: bool = False) -> None:
        super().__init__()
        alike = torch.zeros(1).expand(4)
        self.scale = nn.Parameter(alike.clone() if clone else alike)

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + self.scale


class Random(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * torch.rand(())


class OtherRandom(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * (float(np.random.default_rng().random()) if self.training else 1)


class Detached(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).detach()


class Twice(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class TwoInputs(Net):
    def forward(self, x: Tensor, more: Tensor) -> Any:
        return super().forward(x + more)


class Pooled(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).mean(0)


def unseeded() -> nn.Module:
    net = Net()
    nn.init.constant_(net.first.bias, float(np.random.default_rng().random()))
    return net


KEPT = Net()
BAD: dict[str, tuple[Callable[..., Any], str]] = {
    "outputs": (lambda: Net(outputs=3), r"put out 4 numbers for each record, .* got shape \(1, 3\)"),
    "pooled": (Pooled, r"got shape \(4,\)"),
    "inputs": (lambda: Net(inputs=5), r"take one tensor of records of shape \(2, 3\), got RuntimeError"),
    "a pair": (Twice, "put out a tensor, got tuple. Return the scores alone"),
    "two inputs": (TwoInputs, "take one tensor of records of .*'more'"),
    "bfloat16": (
        lambda: Net().bfloat16(),
        r"got first.weight of torch.bfloat16 .* Make the model with .float\(\)",
    ),
    "float16": (lambda: Net().half(), r"got first.weight of torch.float16 .* Make the model with .float\(\)"),
    "no module": (lambda: 3, "return an nn.Module, got int"),
    "failing": (lambda: 1 / 0, "ZeroDivisionError"),
    "unknown needs": (lambda depth: Net(), "one that needs depth too"),
    "counter": (Counting, "got count that a pass changes"),
    "hidden counter": (lambda: Counting(persistent=False), "got count that a pass changes"),
    "hidden average": (lambda: Counting(torch.float32, False), "got count that a pass changes"),
    "average": (lambda: Averaging(registered=True), "kept from one pass to the next"),
    "unregistered average": (lambda: Averaging(registered=False), "kept from one pass to the next"),
    "largest": (Largest, "got largest that a pass changes"),
    "overlapping": (Overlapping, "got frozen overlapping first.weight"),
    "interleaved": (Interleaved, "got one overlapping other"),
    "repeated": (Repeated, r"got scale overlapping itself. .* nn.Parameter\(one.detach\(\).clone\(\)\)"),
    "tied values, one frozen": (HalfTied, "got first.weight overlapping last.weight"),
    "random in evaluation": (Random, "the same outputs again in evaluation"),
    "other generator": (OtherRandom, "draw from torch's generator alone in training"),
    "unseeded": (unseeded, "the same model from the same seed"),
    "one for all": (lambda: KEPT, "a new module each time"),
    "no gradient": (Detached, "depend on its parameters"),
    "frozen": (lambda: Net().requires_grad_(False), "a parameter to train"),
    "nothing to train": (lambda: nn.Flatten(), "a parameter to train"),
    "double": (lambda: Net().double(), "parameters of float32"),
    "lazy": (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), "the lazy parameter"),
    "huge": (lambda: Net(width=10**8), "at most 100,000,000 parameters"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("case", BAD)
def test_a_model_that_a_study_cannot_use(case: str) -> None:
    factory, message = BAD[case]
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match=message):
        of(factory)
    assert torch.equal(before, torch.get_rng_state())


def test_the_remedy_for_repeated_values() -> None:
    assert size(of(Repeated, options={"clone": True}).build(SHAPE, OUTPUTS, 7)) == size(Net()) + OUTPUTS


def test_values_in_any_order_are_each_in_one_place() -> None:
    turned = Net()
    turned.first.weight = nn.Parameter(torch.zeros(6, 5).T)
    assert size(of(turned).build(SHAPE, OUTPUTS, 7)) == size(Net())


class Named(nn.Module):
    """A model with a module of the name "head", which is not its last dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Any:
        return self.scale(self.head(x.flatten(1)).relu())


def first_frozen() -> nn.Module:
    net = Net()
    net.first.requires_grad_(False)
    return net


TRAINED: dict[str, tuple[Any, Any, list[str]]] = {
    "all": (Net, None, ["first.weight", "first.bias", "last.weight", "last.bias"]),
    "the head": (Net, "head", ["last.weight", "last.bias"]),
    "a module named head": (Named, "head", ["head.weight", "head.bias"]),
    "names": (Net, ("first.bias", "last"), ["first.bias", "last.weight", "last.bias"]),
    "what the model leaves free": (first_frozen, None, ["last.weight", "last.bias"]),
    "names of what is free": (first_frozen, ("first", "last.bias"), ["last.bias"]),
}


@pytest.mark.parametrize("case", TRAINED)
def test_the_vector_has_what_is_trained_and_loading_it_leaves_the_rest(case: str) -> None:
    factory, train, names = TRAINED[case]
    model = of(factory, train=train).build(SHAPE, OUTPUTS, 7)
    assert list(trained_state(model)) == names
    frozen = {key: entry.clone() for key, entry in model.state_dict().items() if key not in names}
    load_vector(model, np.full(size(model), 2.0, np.float32))
    assert (to_vector(model) == 2).all()
    assert all(torch.equal(model.state_dict()[key], entry) for key, entry in frozen.items())


@pytest.mark.parametrize(
    ("factory", "train", "said"),
    [
        (Net, ("frist",), "did you mean `first`"),
        (Net, ("fir",), r'names of parameters or layers of the model, or "head"'),
        (first_frozen, "first", "Name one that it leaves free"),
        (lambda: nn.Flatten(), "head", "at least 1 dense layers"),
    ],
)
def test_names_of_what_is_not_there_or_frozen_are_refused(factory: Any, train: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        of(factory, train=train)


@pytest.mark.parametrize("key", ["hidden", "width", "dropout", "augment"])
def test_a_setting_of_packaged_models_is_none_of_an_own_one(key: str) -> None:
    (section, rest) = section_of({"kind": "net:Net", key: 1}, brought=False)
    with pytest.raises(ConfigError, match=f"Unknown key `{key}`"):
        convert(section, rest, "[model]")
    assert section_of({"kind": "net:Net", "options": {key: 1}}, brought=False)[0] is OwnModelSection
    assert section_of({"kind": "mlp", "hidden": [8], "train": "head"}, brought=True)[1] == {"train": "head"}


def test_an_option_that_it_does_not_take_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean `width`"):
        of(Net, options={"wdith": 3})


def test_there_is_no_shorter_one() -> None:
    with pytest.raises(ConfigError, match="packaged model"):
        of(Net).shorter()


# Text ------------------------------------------------------------------------------------------------

PLACES, KNOWN = 5, 50


class Words(nn.Module):
    """Reads `KNOWN` codes, and knows its places by another embedding, which is smaller."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(KNOWN, 3), nn.Embedding(PLACES, 3)
        self.last = nn.Linear(3, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.last((self.words(x) + self.places(torch.arange(PLACES))).mean(1))


class OneHot(nn.Module):
    """Reads `KNOWN` codes without an embedding."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(KNOWN, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.last(nn.functional.one_hot(x, KNOWN).float().mean(1))


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("outputs", [2, 70])
@pytest.mark.parametrize("factory", [Words, OneHot])
def test_a_model_of_text_reads_as_many_codes_as_it_knows_whatever_its_outputs(
    factory: Any, outputs: int, kind: Any
) -> None:
    """With two classes, records of other codes than 0 and 1 were left out; with 70, code 60 broke a round."""
    model = OwnModel(factory=lambda outputs: factory(outputs), name="mine", reads_text=True)
    x = np.array([[0] * PLACES, [KNOWN - 1] * PLACES, [0, 1, 2, 3, KNOWN], [0, -1, 0, 0, 0]])
    resolved = model.resolved((PLACES,), outputs, 7)
    problem = tiny_problem(model=resolved, kind=kind, shape=(PLACES,), outputs=outputs)
    assert problem.codes is not None
    assert problem.codes.tolist() == [KNOWN] * PLACES
    fits = readable(problem, x)
    assert fits.tolist() == [True, True, False, False]
    assert problem.module(problem.initial)(torch.as_tensor(x[fits])).isfinite().all()


def test_a_packaged_model_of_text_reads_as_many_codes_as_it_has_outputs() -> None:
    for outputs in (2, 65):
        model = ModelConfig(kind="char_lstm", width=0.1)
        codes = tiny_problem(model=model, shape=(8,), outputs=outputs).codes
        assert codes is not None
        assert codes.tolist() == [outputs] * 8


class TiedEnds(nn.Module):
    """The table of an embedding is the weight of the last layer, as of language models."""

    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.words, self.inner = nn.Linear(6, outputs, bias=False), nn.Linear(outputs, 6)
        self.head = nn.Linear(6, outputs)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.inner(self.words(x.flatten(1))))


@pytest.mark.parametrize("train", ["head", ("head.weight", "head.bias"), ("words.weight", "head.bias")])
def test_either_name_of_a_tied_tensor_trains_it(train: Any) -> None:
    made = of(TiedEnds, train=train).build(SHAPE, OUTPUTS, 7)
    assert list(trained_state(made)) == ["words.weight", "head.bias"]
    assert not made.get_parameter("inner.weight").requires_grad


@every(
    "cut",
    [
        (slice(0, 3), slice(2, 5)),
        (slice(0, 2), slice(0, 5)),
        (slice(0, 5), slice(0, 2)),
    ],
)
def test_tensors_that_share_a_part_of_their_memory_are_refused(cut: tuple[slice, slice]) -> None:
    whole, model = torch.zeros(5), Net()
    model.one, model.other = (nn.Parameter(whole[own]) for own in cut)
    with pytest.raises(ConfigError, match=r"memory.*one.*other.*\.clone\(\)"):
        trained_state(model)
    model.one = nn.Parameter(model.one.detach().clone())
    assert {"one", "other"} <= trained_state(model).keys()


class SparseWords(nn.Module):
    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5, sparse=True), nn.Linear(5, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.words(x).mean((1, 2)))


def test_sparse_gradients_of_an_embedding_train_as_dense_ones() -> None:
    x, y = np.random.default_rng(0).integers(0, 9, (20, *SHAPE)), np.arange(20) % 4
    ends = []
    for sparse in (True, False):
        made = of(SparseWords).build(SHAPE, OUTPUTS, 7)
        made.words.sparse = sparse
        local = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=8, momentum=0.9)
        train(made, x, y, local, "cross_entropy", np.random.default_rng(0), 0)
        ends.append(to_vector(made))
    np.testing.assert_allclose(*ends, atol=1e-6)


def test_a_model_with_a_buffer_of_bfloat16_has_a_digest() -> None:
    def made(value: float) -> nn.Module:
        model = Net()
        model.register_buffer("scale", torch.tensor(value, dtype=torch.bfloat16))
        return model.requires_grad_(False)

    digests = []
    for value in (1.0, 1.0, 2.0):
        torch.manual_seed(0)
        digests.append(digest_of(made(value)))
    assert digests[0] == digests[1] != digests[2]
