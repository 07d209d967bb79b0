"""The supernet of ADDS: the entries of a model's vector that belong to each hidden unit, and a subnet's cost.

Hidden units are channels of convolutions and neurons of dense layers. A subnet is a 0/1 vector over them.
Rows of a weight are sliced by the mask of its own layer, columns by the mask of the layer before it. If a
dense layer reads a convolution, each channel has one column for each place of its map. Batch norm and bias
follow the outputs. Depthwise convolutions share the mask of the layer before them. Inputs, outputs,
embeddings and recurrent layers are never sliced (ADDS, sections 3.2 and 3.4).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from securefl.errors import ConfigError
from securefl.training import LocalTraining, Problem
from securefl.training.devices import in_mode
from securefl.training.models import Architecture

Mask = NDArray[np.bool_]
_WEIGHED = (nn.Conv2d, nn.Linear)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A convolution or dense layer.

    Attributes:
        name, norm: its module's name, and that of the batch norm behind it. Empty without one.
        units: how many outputs it has.
        first: the place of its first unit in a subnet's mask. None if its outputs are whole.
        front: the layer whose units are its inputs. None if its inputs are whole.
        columns: how many columns of its weight each of those units has.
        positions: the places of its output map, 1 for a dense layer.
        depthwise: whether each unit reads the one unit in front that has its number.
    """

    name: str
    norm: str
    units: int
    first: int | None
    front: Layer | None
    columns: int
    positions: int
    depthwise: bool

    @property
    def gate(self) -> str:
        """The module whose output a mask multiplies."""
        return self.norm or self.name

    @property
    def own(self) -> slice:
        """Its units in a subnet's mask."""
        assert self.first is not None
        return slice(self.first, self.first + self.units)


@dataclass(frozen=True, eq=False)
class Supernet:
    """The sampled layers of a problem's model (ADDS, sections 3.2 and 3.4).

    Its arrays have d entries of the model's vector, G groups of entries, and J units that may be sampled.

    Raises ConfigError, when the layers are read first, if the model is no chain of layers.

    >>> from securefl.protocols.adds import Supernet
    >>> from securefl.training import LocalTraining, ModelConfig
    >>> local = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=8)
    >>> net = Supernet.of(ModelConfig(kind="mlp", hidden=(6, 4)), local, shape=(3,), classes=2)
    >>> net.units, net.parameters(net.whole), net.entries(net.kept_groups(net.whole)).sum()
    (10, 62, np.int64(62))
    """

    problem: Problem

    @classmethod
    def of(
        cls,
        model: Architecture,
        local: LocalTraining,
        shape: tuple[int, ...],
        classes: int,
        seed: int = 0,
    ) -> Supernet:
        """The supernet of a model that classifies records of this shape, without a study around it.

        Args:
            model: what is built, such as a `ModelConfig`.
            local: how its weights are trained.
            shape: of a record.
            classes: C, two or more.
            seed: the initial model follows from it.

        Returns:
            The supernet. `problem.initial` is its initial model, float32 (d,).

        Raises:
            ConfigError: the model does not fit the records.
        """
        problem = Problem(
            model=model,
            local=local,
            kind="classification",
            shape=shape,
            outputs=classes,
            clients=1,
            records=1,
            server_x=np.zeros((0, *shape), np.float32),
            server_y=np.zeros(0, np.int64),
            seed=seed,
        )
        return cls(problem)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All weighed layers in the order in which they run."""
        if fixed := [name for name, own in self._model.named_parameters() if not own.requires_grad]:
            raise ConfigError(
                f"Expected a model that is trained whole, got {fixed[0]} frozen: subnets take units out "
                "of all layers. Leave all free, or take another protocol, such as fedavg."
            )
        if len(self.problem.initial_norms):
            raise ConfigError(
                'Expected buffers = "averaged" under [model], got "local": a client has another subnet '
                "in each round, and no running statistics of its own. Leave it out, or take another protocol."
            )
        return _chain(self._model, self.problem.model.blank(self.problem.shape))

    @cached_property
    def _model(self) -> nn.Module:
        """A model of its own: a training may be using the problem's."""
        problem = self.problem
        return problem.model.build(problem.shape, problem.outputs, problem.seed)

    @cached_property
    def sampled(self) -> tuple[Layer, ...]:
        """The layers that have units to choose from."""
        return tuple(own for own in self.layers if own.first is not None and not own.depthwise)

    @cached_property
    def units(self) -> int:
        """J: how many units there are to choose from."""
        return sum(own.units for own in self.sampled)

    @property
    def whole(self) -> Mask:
        """bool (J,): the subnet of all units."""
        return np.ones(self.units, np.bool_)

    # Groups -----------------------------------------------------------------------------------------

    @cached_property
    def _grouped(self) -> tuple[NDArray[Any], ...]:
        """The group of each entry (d,), each group's two units (G, 2), its parameters and its MACs (G,)."""
        outputs, inputs, trained, macs = self._labelled()
        key = (outputs + 1) * (self.units + 1) + inputs + 1
        keys, group = np.unique(key, return_inverse=True)
        pairs = np.stack([keys // (self.units + 1), keys % (self.units + 1)], axis=1)
        counts = np.bincount(group, trained, len(keys)).astype(np.int64)
        return group.astype(np.int64), pairs, counts, np.bincount(group, macs, len(keys))

    def _labelled(self) -> tuple[NDArray[np.int64], ...]:
        """For each entry: the units of its output and input (-1: whole), whether it is trained, its MACs."""
        shapes = {name: e.shape for name, e in self._model.state_dict().items() if e.is_floating_point()}
        trained = {name for name, _ in self._model.named_parameters()}
        columns: list[list[NDArray[np.int64]]] = [[], [], [], []]
        for name, shape in shapes.items():
            module, _, entry = name.rpartition(".")
            layer = next((own for own in self.layers if module in (own.name, own.norm)), None)
            size = prod(shape)
            own, front = np.full(size, -1), np.full(size, -1)
            weight = layer is not None and module == layer.name and entry == "weight"
            if layer is not None and layer.first is not None:
                own = np.repeat(np.arange(layer.first, layer.first + layer.units), size // layer.units)
            if layer is not None and weight and not layer.depthwise and layer.front is not None:
                inside = layer.front.first + np.arange(layer.front.units)  # type: ignore[operator]
                front = np.tile(np.repeat(inside, size // (layer.units * layer.front.units)), layer.units)
            columns[0].append(own)
            columns[1].append(front)
            columns[2].append(np.full(size, int(name in trained)))
            columns[3].append(np.full(size, layer.positions if layer is not None and weight else 0))
            if isinstance(self._model.get_submodule(module), nn.LSTM) and entry.startswith("weight"):
                columns[3][-1][:] = self.problem.shape[0]  # once for each character
        return tuple(np.concatenate(column) for column in columns)

    @property
    def groups(self) -> int:
        """G, the number of groups: entries of the same two units are one, and a map has a value for it."""
        return len(self._grouped[1])

    def kept_groups(self, units: Mask) -> Mask:
        """Return the groups of entries that are in a subnet.

        Args:
            units: its units, bool (J,).

        Returns:
            bool (G,). A group is in it if both of its units are.
        """
        there: Mask = np.concatenate([[True], units]).astype(np.bool_)
        pairs: NDArray[np.int64] = self._grouped[1]
        kept: Mask = there[pairs[:, 0]] & there[pairs[:, 1]]
        return kept

    def entries(self, groups: NDArray[Any]) -> NDArray[Any]:
        """Give each entry of the model's vector the value of its group.

        Args:
            groups: of any type, (G,).

        Returns:
            Of the same type, (d,).
        """
        return np.asarray(groups[self._grouped[0]])

    # Costs ------------------------------------------------------------------------------------------

    def parameters(self, units: Mask) -> int:
        """Return the number of a subnet's trained parameters.

        Args:
            units: its units, bool (J,).
        """
        return int(self._grouped[2][self.kept_groups(units)].sum())

    def macs(self, units: Mask) -> int:
        """Return the multiplications with weights in one record's forward pass. An embedding is looked up.

        Args:
            units: of the subnet, bool (J,).
        """
        return int(self._grouped[3][self.kept_groups(units)].sum())

    def rates(self, units: Mask) -> dict[str, float]:
        """Return the share of each sampled layer's units that is in a subnet, by the layer's name.

        Args:
            units: of the subnet, bool (J,).
        """
        return {own.name: float(units[own.own].mean()) for own in self.sampled}

    # Subnets ----------------------------------------------------------------------------------------

    def slice(self, model: nn.Module, units: Mask) -> nn.Module:
        """Take all other units out of the model, in place, and return it.

        Args:
            model: a module that the problem built.
            units: of the subnet, bool (J,).

        Raises:
            ConfigError: a sampled layer has no unit in the subnet.
        """
        if not all(units[own.own].any() for own in self.sampled):
            raise ConfigError(
                "Expected a unit of every layer in a subnet, got a layer without any: nothing passes it. "
                "Keep at least one."
            )
        for layer in self.layers:
            rows = _places(layer, units)
            front = torch.arange(0) if layer.front is None else _places(layer.front, units)
            _narrow(model.get_submodule(layer.name), layer, rows, front)
            if layer.norm:
                _narrow_norm(model.get_submodule(layer.norm), rows)
        return model


def supernet_of(problem: Problem) -> Supernet:
    """The problem's model as a supernet.

    Raises ConfigError for private training, targets that are not classes, and a model that is no chain.
    """
    if problem.private is not None:
        raise ConfigError(
            "Expected no [dpsgd] with subnets, got one: subnets are not trained by it. The gates of ADDS "
            "read validation records, and the epsilon of DP-SGD does not cover what a subnet tells of them. "
            'Leave [dpsgd] out, or add noise to the values that clients send (unit = "client").'
        )
    if problem.kind != "classification" or problem.outputs < 2:
        raise ConfigError(
            "Expected two classes or more, got other targets: the search weighs the skew of labels. Take "
            "data with classes."
        )
    supernet = Supernet(problem)
    supernet.layers  # noqa: B018 -- raises the error of a model that is no chain
    return supernet


def _places(layer: Layer, units: Mask) -> Tensor:
    there = np.ones(layer.units, np.bool_) if layer.first is None else units[layer.own]
    return torch.from_numpy(np.flatnonzero(there))


def _narrow(module: nn.Module, layer: Layer, rows: Tensor, front: Tensor) -> None:
    assert isinstance(module, _WEIGHED)
    weight = module.weight.data[rows]
    if layer.front is not None and not layer.depthwise:
        columns = (front[:, None] * layer.columns + torch.arange(layer.columns)).reshape(-1)
        weight = weight[:, columns]
    module.weight = nn.Parameter(weight)
    if module.bias is not None:
        module.bias = nn.Parameter(module.bias.data[rows])
    if isinstance(module, nn.Conv2d):
        module.groups = len(rows) if layer.depthwise else 1


def _narrow_norm(module: nn.Module, rows: Tensor) -> None:
    assert isinstance(module, _BatchNorm)
    for name in ("weight", "bias"):
        setattr(module, name, nn.Parameter(getattr(module, name).data[rows]))
    for name in ("running_mean", "running_var"):
        setattr(module, name, getattr(module, name)[rows])
    module.num_features = len(rows)


def _chain(model: nn.Module, blank: Tensor) -> tuple[Layer, ...]:
    """The layers of a model. Raises ConfigError unless each of them reads the one before it."""
    ran = _ran(model, blank)
    weighed = [place for place, (_, module, _) in enumerate(ran) if isinstance(module, _WEIGHED)]
    layers: list[Layer] = []
    first = 0
    for place, until in zip(weighed, [*weighed[1:], len(ran)], strict=True):
        name, module, positions = ran[place]
        norm = next((own for own, other, _ in ran[place:until] if isinstance(other, _BatchNorm)), "")
        before = layers[-1] if layers else None
        front = before if before is not None and before.first is not None else None
        assert isinstance(module.weight, Tensor)
        units, inputs, groups = int(module.weight.shape[0]), int(module.weight.shape[1]), 1
        if isinstance(module, nn.Conv2d):
            inputs, groups = module.in_channels, module.groups
        columns = 1 if front is None or isinstance(module, nn.Conv2d) else inputs // front.units
        fits = front is None or front.units * columns == inputs
        if groups > 1:
            fits = front is not None and groups == inputs == units
        if not fits:
            raise ConfigError(
                f"Expected a model whose layers each read the one before, got {name!r}, which does not. Take "
                "kind 'adds_cnn', 'mlp', 'lenet5', 'fedlog_cnn', 'fedcor_cnn' or 'char_lstm'."
            )
        last = place == weighed[-1]
        layer = Layer(
            name=name,
            norm=norm,
            units=units,
            first=front.first if groups > 1 and front is not None else None if last else first,
            front=front,
            columns=columns,
            positions=positions,
            depthwise=groups > 1,
        )
        layers.append(layer)
        first += units if layer.first is not None and not layer.depthwise else 0
    if len(layers) < 2:
        raise ConfigError("Expected a model with a hidden layer to sample, got one without. Take another.")
    return tuple(layers)


def _ran(model: nn.Module, blank: Tensor) -> list[tuple[str, nn.Module, int]]:
    """The modules without parts in the order in which they ran, and the places of their output maps."""
    found: list[tuple[str, nn.Module, int]] = []

    def note(name: str, own: nn.Module, _given: Any, came: Any) -> None:
        found.append((name, own, prod(came.shape[2:]) if isinstance(own, nn.Conv2d) else 1))

    with ExitStack() as hooks, in_mode(model, training=False), torch.no_grad():
        for name, module in model.named_modules():
            if not list(module.children()):
                hooks.enter_context(module.register_forward_hook(partial(note, name)))
        model(blank)
    return found
