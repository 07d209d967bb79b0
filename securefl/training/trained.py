"""A trained model that reads the records of its study and predicts, and loading one from an exported file."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import convert
from securefl.data.dataset import whole_numbers
from securefl.data.files import cache_folder
from securefl.data.schema import frame_of
from securefl.storage.own_code import names_code
from securefl.training.devices import as_tensor, in_mode
from securefl.training.exported import Tensors, fill, read
from securefl.training.heads import bound_features
from securefl.training.isolation import RECORD_ERRORS
from securefl.training.model_card import Described, described
from securefl.training.models import Kind, ModelConfig
from securefl.training.networks import Network, digest_of, named
from securefl.training.own_models import OwnModel
from securefl.training.private_layers import make_private

Own = nn.Module | Callable[..., nn.Module]
"""A module, or a function that makes one from some of `shape`, `inputs`, `outputs` and the options."""
Told = Callable[[int], None]
"""A callback: number of finished records."""
_AT_ONCE: Final = 256
"""The records of a batch, as many as in `evaluation`: predictions equal those of the reported accuracy."""
_WHERE: Final = "records"


class RecordsError(DataError, ValueError):
    """Raised if a model cannot read records. It is a ValueError too, as scikit-learn's tools expect."""


class Trained(nn.Module):
    """A trained model in evaluation mode, with its card.

    Records are a table (pandas or polars) whose columns are found by name, a list of mappings of columns to
    values, or an array. Each column is read by the declaration that the study made of it: other cells are
    refused with row and column. Columns that the model does not read are left out.

    An array (n, ...) has the records as they were before `[data]` encoded them: a table's columns in the
    order of `feature_names_in_`, or images. It may also have the model's input, as `Run.test_records` gives
    it. An array that could be either is refused.

    scikit-learn's tools take a `Trained` as an estimator that is fitted already: `fit` changes nothing.

    Attributes:
        module: The bare model. Its state dict has the names of the exported file.
        card: The origin of the model: study, data, what each party learns, epsilon per party, ledger, rounds,
            accuracy.
    """

    def __init__(self, module: nn.Module, card: Mapping[str, Any], network: Network | None = None) -> None:
        super().__init__()
        self.module = module
        self.card = card
        # A tuple, since torch would count a network's values as the model's.
        self._given = (network,)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(x)
        return found

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the bare model."""
        return self.module.state_dict(*args, **kwargs)

    @cached_property
    def about(self) -> Described:
        """The model's description in the card."""
        return described(self.card)

    def outputs(self, x: object, tell: Told = lambda done: None) -> NDArray[np.float32]:
        """The outputs for records, float32 (n, outputs). For a classification they are logits.

        The last bits of a record's outputs may depend on the number of records beside it: the kernels of some
        processors sum in another order. Each output stays within the rounding of its own sum.

        tell: called with the number of finished records.

        Raises RecordsError, a DataError and ValueError, if records do not fit the card, and ConfigError if
        the file holds only the shared part of personal models, which cannot predict, or if the network of the
        features is missing or another one.
        """
        if self.card["part"] == "shared":
            raise ConfigError(
                "Expected a whole model to predict with, got the part that clients share: each client keeps "
                "the rest. Name one client (`client=`, or `securefl export --client`)."
            )
        rows = as_tensor(self.inputs(x))
        with in_mode(self.module, training=False), torch.inference_mode():
            found = np.empty((len(rows), self.about.outputs), np.float32)
            for start in range(0, len(rows), _AT_ONCE):
                batch = rows[start : start + _AT_ONCE]
                try:
                    part = self.module(batch).float().numpy()
                except RECORD_ERRORS as error:
                    raise self._unread(batch, start, error) from error
                if (bad := np.flatnonzero(np.isnan(part).any(1))).size:
                    raise RecordsError(
                        f"Expected an output for every record, got nan for row {start + bad[0] + 1}. Leave "
                        "it out, or correct it."
                    )
                found[start : start + len(part)] = part
                tell(start + len(part))
        return found

    def _unread(self, batch: Tensor, start: int, error: Exception) -> Exception:
        """The error for a batch that the model raises for: it names the record's row, and its column if one
        value is the cause. It is `error` if the model reads each record."""

        def raises(record: Tensor) -> bool:
            try:
                self.module(record[None])
            except RECORD_ERRORS:
                return True
            return False

        row = next((row for row, record in enumerate(batch) if raises(record)), None)
        if row is None:
            return error
        values = batch[row].flatten()
        alone = (values.where(torch.arange(len(values)) == at, 0) for at in range(len(values)))
        column = next((at for at, one in enumerate(alone) if raises(one.view_as(batch[row]))), None)
        where = f"row {start + row + 1}"
        if column is not None:
            names = self.about.records.names if self.about.records.columns is not None else ()
            name = f"{names[column]!r}" if len(names) == len(values) else column + 1
            where += f", column {name}: {values[column].item():g}"
        return RecordsError(
            f"Expected records that the model reads, got {type(error).__name__} for {where} "
            f"({str(error).strip()[:200]}). Correct it: a code must be one that the model knows."
        )

    def inputs(self, x: object, tell: Told = lambda done: None) -> NDArray[Any]:
        """Encode records as the model's input, float32 (n, *shape), or int64 for text.

        tell: called with the number of records whose features are computed, if a network computes them.

        Raises errors as `outputs` does.
        """
        schema = self.about.records
        try:
            if (frame := frame_of(x, _WHERE)) is not None:
                return self._featured(schema.encode(frame, _WHERE), tell)
            found = _array(x)
            if self._is_raw(found):
                return self._encoded(found, tell)
            return _numbers(found, self.about.shape, text=self.about.reads_text)
        except RecordsError:
            raise
        except DataError as error:
            raise RecordsError(str(error)) from None

    def _is_raw(self, found: NDArray[Any]) -> bool:
        """Whether an array has records as they were before the study encoded them, and not the input."""
        schema, shape = self.about.records, found.shape[1:]
        if schema.plain:
            return False
        raw = (len(schema.columns),) if schema.columns is not None else schema.shape
        if schema.columns is None and schema.scaling is not None:
            return shape == raw
        if shape == raw == self.about.shape:
            raise RecordsError(
                f"Expected a table or a list of mappings, got an array (n, {shape[0]}): it may have the "
                f"values of {', '.join(map(repr, schema.names[:3]))} as they are, or scaled as the model "
                "reads them. Pass a DataFrame with column names."
            )
        return shape == raw

    def _encoded(self, found: NDArray[Any], tell: Told) -> NDArray[Any]:
        import pandas as pd

        schema = self.about.records
        if schema.columns is None:
            return self._featured(_numbers(found, schema.shape, text=False), tell)
        frame = pd.DataFrame(found.astype(object), columns=list(schema.names))
        return self._featured(schema.encode(frame, _WHERE), tell)

    def _featured(self, rows: NDArray[Any], tell: Told) -> NDArray[Any]:
        """The features of encoded records, the scaled records, or the records as they are."""
        features, scaling = self.about.records.features, self.about.records.scaling
        if self.about.reads_text:
            return whole_numbers(rows, np.zeros(len(rows), np.int64), _WHERE)[0]
        if features is None:
            return rows if scaling is None else scaling.of(rows)
        network = self._given[0]
        if network is None and names_code(features.word):
            raise ConfigError(
                f"Expected the network {features.word} of the exporter's own code, which computes the "
                "features, got none. Give load(path, network=...) its module (on the command line: --network "
                "module:name), or pass the features as an array."
            )
        network = network or named(features.word)
        if network.name != features.name:
            raise ConfigError(
                f"Expected features by the network {features.name!r}, as the card says, got {network.name!r}:"
                " the model would read other features. Give the network of the card."
            )
        return network.features(rows, cache_folder() / "features", tell)

    def predict(self, x: object) -> NDArray[Any]:
        """The label of each record, (n,), in the type and words of the table's own labels.

        Of several labels, those of each target, (n, labels). For a regression, values in the table's units:
        float32 (n,), or (n, targets) for several targets.
        Raises errors as `outputs` does.
        """
        return self.labelled(self.outputs(x))

    def labelled(self, outputs: NDArray[np.float32]) -> NDArray[Any]:
        """The labels or values that `predict` gives for these outputs (n, outputs)."""
        if self.about.task == "regression":
            return self.about.records.in_units(outputs)
        several = self.about.task == "multi-label"
        found: NDArray[Any] = self.classes_[(outputs > 0).astype(int) if several else outputs.argmax(1)]
        return found

    def predict_proba(self, x: object) -> NDArray[np.float64]:
        """The probability of each class, float64 (n, classes), in the order of `classes_`.

        Of several labels, the probability that each is the second of `classes_`, (n, labels).

        Raises ConfigError for a regression, and errors as `outputs` does.
        """
        return self.probable(self.outputs(x))

    def probable(self, outputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """The probabilities that `predict_proba` gives for these outputs (n, classes)."""
        if self.about.task == "regression":
            raise ConfigError(
                "Expected a classification for probabilities, got a regression. Take `predict`."
            )
        logits = torch.from_numpy(outputs).double()
        shares = logits.sigmoid() if self.about.task == "multi-label" else logits.softmax(1)
        found: NDArray[np.float64] = shares.numpy()
        return found

    # As scikit-learn's tools ask ----------------------------------------------------------------------

    def fit(self, x: object, y: object = None) -> Trained:
        """Change nothing: the model is trained. scikit-learn's tools call it."""
        return self

    def score(self, x: object, y: object) -> float:
        """The accuracy of `predict` on these records and labels, or R2 for a regression."""
        from sklearn.metrics import accuracy_score, r2_score

        predicted = self.predict(x)
        if self.about.task == "multi-label":
            return float((np.asarray(y) == predicted).all(1).mean())
        rate = accuracy_score if self.about.task == "classification" else r2_score
        return float(rate(y, predicted))

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels in the order of the outputs, (classes,), or the two that each of several labels has.

        A regression has none.
        """
        if self.about.task == "regression":
            raise AttributeError("A regression has no classes_.")
        return self.about.records.classes(2 if self.about.task == "multi-label" else self.about.outputs)

    @property
    def n_features_in_(self) -> int:
        """The number of columns of a record that is a row."""
        schema = self.about.records
        if schema.columns is None and len(schema.shape) > 1:
            raise AttributeError(f"Records of shape {schema.shape} have no columns.")
        return schema.shape[0] if schema.columns is None else len(schema.columns)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The columns that the model reads, in their order. A model that was trained on arrays has none."""
        if self.about.records.columns is None:
            raise AttributeError("A model that was trained on arrays has no column names.")
        return np.array(self.about.records.names, object)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        classes, several = self.about.task != "regression", self.about.task == "multi-label"
        declared = self.about.records.columns or ()
        return Tags(
            estimator_type="classifier" if classes else "regressor",
            target_tags=TargetTags(required=False, single_output=not several, multi_output=several),
            classifier_tags=ClassifierTags(multi_label=several) if classes else None,
            regressor_tags=None if classes else RegressorTags(),
            input_tags=InputTags(
                categorical=any(column.categories is not None for column in declared),
                allow_nan=any(column.missing is not None or column.indicator for column in declared),
            ),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Trained:
        return self

    def __repr__(self) -> str:
        card = self.card
        whose = "" if card["client"] is None else f", client {card['client']}"
        return f"Trained({card['study']['name']!r}: {card['arm']}, seed {card['seed']}{whose})"


def load(path: Path | str, model: Own | None = None, network: nn.Module | None = None) -> Trained:
    """Load an exported model for prediction.

        >>> import securefl
        >>> run = securefl.run("fedlog_digits", out="runs/digits", progress=False)
        >>> path = run.export("fedlog.safetensors", "FedLog (unit norm)")
        >>> trained = securefl.load(path)
        >>> x, y = run.test_records()
        >>> bool((trained.predict(x) == y).mean() == trained.card["accuracy"])
        True
        >>> trained.predict_proba(x[:2]).shape
        (2, 10)

    Args:
        path: The file that `securefl export` or `Run.export` wrote.
        model: For a model of the exporter's own code: a module, which is copied, or a class or function that
            makes one. It gets `shape`, `inputs`, `outputs` and the card's options by name. Own code is never
            run unless it is given here. Without it, the card's `[model] kind` is built.
        network: The module that computes features of records, if the study's own code made it. A module with
            other layers or values than the card names is refused.

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
    tensors, card, about = opened(path)
    shared = card["part"] == "shared"
    made = _packaged(path, about, shared=shared) if model is None else _own(model, about)
    if about.changes:
        made = make_private(made)[0]
    fill(made, tensors, path, whole=not shared or not isinstance(model, nn.Module))
    bound_features(made, about.features)
    return Trained(made, card, None if network is None else _network(network, about))


def opened(path: Path) -> tuple[Tensors, dict[str, Any], Described]:
    """The values, the card and its description of the model in a file. No code is run.

    Raises ConfigError and DataError as `load` does.
    """
    tensors, card = read(path)
    try:
        return tensors, card, described(card)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        what = f"no entry {error}" if isinstance(error, KeyError) else f"one that is not whole: {error}"
        raise DataError(
            f"Expected the whole card of a model in {path}, got {what[:400]} Export the model again."
        ) from None


def _network(module: nn.Module, about: Described) -> Network:
    """The caller's network, under the card's name if its layers and values are those of the card."""
    if not isinstance(module, nn.Module) or about.records.features is None:
        raise ConfigError(
            "Expected `network` as a module, for a model whose card names a network of its features, got "
            f"{type(module).__name__}. Leave it out."
        )
    features = about.records.features
    digest = digest_of(module)
    same = names_code(features.word) and features.name.split()[-1] == digest
    return Network(module=module, name=features.name if same else digest, about=features.about)


def _path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise ConfigError(f"Expected the path of an exported model, got {path!r}.")
    return Path(path)


def _packaged(path: Path, about: Described, *, shared: bool) -> nn.Module:
    """The model of the card, if this package can build it."""
    if about.kind not in get_args(Kind):
        raise ConfigError(
            f"Expected `model` for {path}, whose model {about.kind!r} is not one of this package: give "
            "load(path, model=...) the class, or a module of it. On the command line: --model module:name, "
            "which runs that code."
        )
    if shared:
        raise ConfigError(
            f"Expected a whole model in {path}, got the part that clients share: each client keeps the rest. "
            "Export one client's with --client, or give `model` a module that has the other values."
        )
    table = {"kind": about.kind, "hidden": about.hidden, "width": about.width}
    known = {name: value for name, value in table.items() if value is not None}
    return convert(ModelConfig, known, "model").build(about.shape, about.outputs, 0)


def _own(model: Own, about: Described) -> nn.Module:
    """A copy of the caller's module, or the module that its class or function makes."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not callable(model):
        raise ConfigError(
            f"Expected `model` as a module or a function that makes one, got {type(model).__name__}."
        )
    # The caller may have put the options in, or know a newer class: only those that it names are passed.
    wanted: Mapping[str, Any] = {}
    with suppress(TypeError, ValueError):  # a function of C has no signature
        parameters = signature(model).parameters
        anything = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        wanted = {name: value for name, value in about.options.items() if anything or name in parameters}
    made = OwnModel(factory=model, name=getattr(model, "__name__", "`model`"), options=wanted)
    return made.build(about.shape, about.outputs, 0)


def _array(x: object) -> NDArray[Any]:
    """Records as an array of any type. Raises RecordsError for masked, complex, sparse and ragged ones."""
    try:
        found = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)
    except (ValueError, TypeError, RuntimeError) as error:
        raise RecordsError(f"Expected records as numbers, got what numpy does not read: {error}.") from None
    if isinstance(x, np.ma.MaskedArray) or np.iscomplexobj(found):
        raise RecordsError("Expected records as real numbers, got a masked or complex array.")
    if hasattr(x, "toarray"):
        raise RecordsError("Expected records as a dense array, got a sparse one. Pass its toarray().")
    return found


def _numbers(found: NDArray[Any], shape: tuple[int, ...], *, text: bool) -> NDArray[Any]:
    try:
        with np.errstate(over="ignore"):
            rows = found.astype(np.int64 if text else np.float32)
    except (ValueError, TypeError) as error:
        raise RecordsError(f"Expected records as numbers, got what numpy does not read: {error}.") from None
    if text and found.dtype.kind not in "iu":
        raise RecordsError(f"Expected records as whole numbers, the codes of characters, got {found.dtype}.")
    if found.ndim < 1 or not len(found) or found.shape[1:] != shape:
        expected = ", ".join(map(str, ("n", *shape)))
        hint = " Reshape your data: one record is x[None]." if shape and found.shape == shape else ""
        raise RecordsError(f"Expected records of shape ({expected}) with n >= 1, got {found.shape}.{hint}")
    if not text and not np.isfinite(rows).all():
        row = int(np.argwhere(~np.isfinite(rows))[0][0])
        raise RecordsError(f"Expected finite records, got NaN or infinity in row {row + 1}. Leave it out.")
    return rows
