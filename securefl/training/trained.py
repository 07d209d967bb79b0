"""Loading an exported model for prediction.

The card's description of the model is parsed strictly, since an untrusted party may have written the file.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from math import inf, prod
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError, SecureFLError
from securefl.core.reading import convert
from securefl.core.text_safety import is_legible
from securefl.training.devices import as_tensor, in_mode
from securefl.training.exported import Tensors, read
from securefl.training.heads import Bounded
from securefl.training.learnt import bound_features
from securefl.training.models import MOST_PARAMETERS, Kind, ModelConfig
from securefl.training.private_layers import make_private

Own = nn.Module | Callable[..., nn.Module]
"""A module, or a class or function that makes one from some of `shape`, `inputs` and `outputs`."""
_AT_ONCE = 256
"""The records of a batch, as many as in `evaluation`: predictions equal those of the reported accuracy."""


class Trained(nn.Module):
    """A trained model in evaluation mode, with its card.

    Attributes:
        module: The bare model. Its state dict has the names of the exported file.
        card: The origin of the model: study, data, what each party learns, epsilon per party, ledger, rounds,
            accuracy.
    """

    def __init__(self, module: nn.Module, card: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.card = card
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(x)
        return found

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the bare model."""
        return self.module.state_dict(*args, **kwargs)

    def outputs(self, x: ArrayLike) -> NDArray[np.float32]:
        """The outputs for records (n, *shape), float32 (n, outputs). For a classification they are logits.

        Raises DataError if records have another shape or type or are not finite, and ConfigError if the file
        holds only the shared part of personal models, which cannot predict.
        """
        model = self.card["model"]
        if self.card["part"] == "shared":
            raise ConfigError(
                "Expected a whole model to predict with, got the part that clients share: each client keeps "
                "the rest. Name one client (`client=`, or `securefl export --client`)."
            )
        rows = as_tensor(_records(x, tuple(model["shape"]), text=bool(model["reads_text"])))
        with in_mode(self.module, training=False), torch.inference_mode():
            parts = [self.module(part).float() for part in torch.split(rows, _AT_ONCE)]
            found: NDArray[np.float32] = torch.cat(parts).numpy()
        return found

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """The class of each record, int64 (n,). For a regression the record's values, float32 (n, outputs).

        Raises errors as `outputs` does.
        """
        found = self.outputs(x)
        return found.argmax(1) if self.card["model"]["task"] == "classification" else found

    def __repr__(self) -> str:
        card = self.card
        whose = "" if card["client"] is None else f", client {card['client']}"
        return f"Trained({card['study']['name']!r}: {card['arm']}, seed {card['seed']}{whose})"


def load(path: Path | str, model: Own | None = None) -> Trained:
    """Load an exported model for prediction.

        >>> import securefl
        >>> run = securefl.run("fedlog_digits", out="runs/digits", progress=False)
        >>> path = run.export("fedlog.safetensors", "FedLog (unit norm)")
        >>> trained = securefl.load(path)
        >>> x, y = run.test_records()
        >>> bool((trained.predict(x) == y).mean() == trained.card["accuracy"])
        True

    Args:
        path: The file that `securefl export` or `Run.export` wrote.
        model: For a model that is not packaged: a module, which is copied, or a function that makes one.
            Without it, the card's `[model] kind` is built.

    Returns:
        A `Trained`, in evaluation mode on the CPU.

    Guarantees:
        - No code in the file is run, and nothing is unpickled.
        - A damaged file is refused.
        - Every value of the model comes from the file, or the file is refused. The shared part of personal
        models
          has only some of the values: `model` must then be a module that has the others.

    Raises:
        ConfigError: There is no such file, or the model does not fit it.
        DataError: The file is damaged or is not an exported model.
    """
    path = _path(path)
    tensors, card = read(path)
    try:
        about = described(card)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise DataError(
            f"Expected the whole card of a model in {path}, got {type(error).__name__}: {str(error)[:400]}"
        ) from None
    if model is None:
        made = _packaged(path, about, shared=card["part"] == "shared")
    else:
        made = _own(model, about.shape, about.outputs)
    if about.changes:
        made = make_private(made)[0]
    _fill(made, tensors, path, whole=card["part"] != "shared" or not isinstance(model, nn.Module))
    bound_features(made, about.features)
    return Trained(made, card)


def _path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise ConfigError(f"Expected the path of an exported model, got {path!r}.")
    return Path(path)


def _packaged(path: Path, about: Described, *, shared: bool) -> nn.Module:
    """The model of the card, if this package can build it."""
    if about.kind not in get_args(Kind):
        raise ConfigError(
            f"Expected `model` for {path}, whose model {about.kind!r} is not one of this package: give "
            "load(path, model=...) the class, or a module of it."
        )
    if shared:
        raise ConfigError(
            f"Expected a whole model in {path}, got the part that clients share: each client keeps the rest. "
            "Export one client's with --client, or give `model` a module that has the other values."
        )
    table = {"kind": about.kind, "hidden": about.hidden, "width": about.width}
    known = {name: value for name, value in table.items() if value is not None}
    return convert(ModelConfig, known, "model").build(about.shape, about.outputs, 0)


def _own(model: Own, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A copy of the caller's module, or the module that its factory makes."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not callable(model):
        raise ConfigError(
            f"Expected `model` as a module or a function that makes one, got {type(model).__name__}."
        )
    try:
        made = _built(model, shape, outputs)
    except SecureFLError:
        raise
    except Exception as error:  # the factory is the caller's code: it can raise any exception
        raise ConfigError(
            f"Expected `model` to make a module, got {type(error).__name__}: {error}. Give the module itself."
        ) from error
    return made


def _built(factory: Callable[..., object], shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The module that a factory makes. It gets those of `shape`, `inputs` and `outputs` that it names."""
    offered: dict[str, Any] = {"shape": shape, "inputs": prod(shape), "outputs": outputs}
    made = factory(**{name: offered[name] for name in signature(factory).parameters if name in offered})
    if not isinstance(made, nn.Module):
        raise ConfigError(f"Expected `model` to make a module, got {type(made).__name__}.")
    return made


def _fill(model: nn.Module, tensors: Tensors, path: Path, *, whole: bool) -> None:
    """Write the values into the model. Raises ConfigError unless names and shapes fit the model.

    whole: whether all values of the model must be among `tensors`.
    """
    entries = {name: entry for name, entry in model.state_dict().items() if entry.is_floating_point()}
    said = f"Expected a model that fits {path}"
    if strange := [name for name in tensors if name not in entries]:
        raise ConfigError(f"{said}, got one without {_some(strange)}. Give the class that was trained.")
    if whole and (missing := [name for name in entries if name not in tensors]):
        raise ConfigError(f"{said}, got one that also has {_some(missing)}. Give the class that was trained.")
    for name, entry in entries.items():
        values = tensors.get(name)
        if values is None:
            continue
        if values.shape != tuple(entry.shape):
            raise ConfigError(
                f"{said}, in which {name} has the shape {values.shape}, got one with {tuple(entry.shape)}. "
                "Give the class that was trained."
            )
        entry.copy_(torch.from_numpy(values))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _records(x: ArrayLike, shape: tuple[int, ...], *, text: bool) -> NDArray[Any]:
    try:
        found = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)
        if isinstance(x, np.ma.MaskedArray) or np.iscomplexobj(found):
            raise TypeError("a masked or complex array")
        rows = found.astype(np.int64 if text else np.float32)
    except (ValueError, TypeError) as error:
        raise DataError(f"Expected records as numbers, got others ({error}).") from None
    if text and found.dtype.kind not in "iu":
        raise DataError(f"Expected records as whole numbers, the codes of characters, got {found.dtype}.")
    if found.ndim < 1 or not len(found) or found.shape[1:] != shape:
        expected = ", ".join(map(str, ("n", *shape)))
        hint = " One record is x[None]." if shape and found.shape == shape else ""
        raise DataError(f"Expected records of shape ({expected}) with n >= 1, got {found.shape}.{hint}")
    if not text and not np.isfinite(rows).all():
        raise DataError("Expected finite records, got NaN or infinity among them. Leave those out.")
    return rows


# The model's description in the card -----------------------------------------------------------------


_LONGEST: Final = 1000
"""The most characters of a name."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """The part `model` of a card: the description from which the model is built.

    hidden, width: of a packaged model. shape: of one record. changes: the changes for private training.
    features: the bound of the head's input, or None.
    """

    kind: str
    hidden: tuple[int, ...] | None
    width: float | None
    reads_text: bool
    shape: tuple[int, ...]
    outputs: int
    task: Literal["classification", "regression"]
    features: Bounded | None
    changes: tuple[str, ...]

    def __post_init__(self) -> None:
        _require_name("model", self.kind)
        for size in (*self.shape, self.outputs, prod(self.shape)):
            if not 1 <= size <= MOST_PARAMETERS:
                raise ValueError(f"Expected sizes from 1 to {MOST_PARAMETERS:,}, got {size}.")
        bounded = self.features
        if bounded is not None and not 0 < bounded.bound < inf:
            raise ValueError(f"Expected a finite features.bound above 0, got {bounded.bound}.")
        map_ = None if bounded is None else bounded.projection
        # The map is drawn from its seed, so a short file could name a map of any size.
        if map_ is not None and not (
            0 <= map_.seed < 2**64 and map_.features * map_.width <= MOST_PARAMETERS
        ):
            raise ValueError(f"Expected a projection of at most {MOST_PARAMETERS:,} numbers, got {map_}.")


def described(card: Mapping[str, Any]) -> Described:
    """Parse the model of a card, and check the card's other entries that a `Trained` shows.

    Raises KeyError, TypeError, ValueError or ConfigError if `securefl export` cannot have written the card.
    """
    for name in (card["arm"], card["study"]["name"]):
        _require_name("arm and study", name)
    if card["part"] not in ("whole", "shared", "client"):
        raise ValueError(f"a part {str(card['part'])[:80]!r}")
    for number in (card["seed"], card["client"] or 0):
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError("a seed or client that is no number")
    return convert(Described, card["model"], "model")


def _require_name(what: str, name: object) -> None:
    if not isinstance(name, str) or len(name) > _LONGEST or not is_legible(name):
        raise ConfigError(f"Expected a printable name of {what}, got {str(name)[:80]!r}.")
