"""Conversion of a caller's records into `InMemory`: arrays, tables, and data sets of torch and Hugging Face.

A portion is the records of one client, or of all clients together. It becomes a DataFrame, `Arrays` or a
`Dataset`. Columns and values are checked later, against the layout that the study declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.core.text_safety import require_distinct, some
from securefl.data.dataset import Dataset, Split
from securefl.data.layout import Arrays, Layout
from securefl.data.tables import frame_of_table

if TYPE_CHECKING:
    import pandas as pd

    Portion = pd.DataFrame | Arrays | Dataset

FORMS: Final = (
    "arrays (x, y), a DataFrame, a Dataset or Split of securefl.data, a torch or Hugging Face data set, a "
    'mapping {"train": ..., "test": ...} of these, or a list of these with one for each client'
)


@dataclass(frozen=True, kw_only=True, eq=False)
class InMemory:
    """A caller's records, in portions.

    parts: the portions of the training records, each under a name for errors. test: the server's records, or
    None. test_name: a name of these for errors, or "". divided: whether each portion belongs to one client.
    network: the network that computed the features in the records, if the files that were read name one;
    otherwise "".
    """

    parts: Mapping[str, Portion]
    test: Portion | None = None
    test_name: str = ""
    divided: bool = False
    network: str = ""


def given(thing: object, layout: Layout, where: str) -> InMemory:
    """Convert a caller's object, in one of FORMS.

    where: a name of the object for errors. Raises DataError if it has none of these forms, and ConfigError if
    two keys of a mapping by client look alike.
    """
    clients: Any = None
    if isinstance(thing, Split):
        return InMemory(parts={where: thing.train}, test=thing.test)
    if isinstance(thing, Mapping) and {"train"} <= set(map(str, thing)) <= {"train", "test"}:
        test = portion(thing["test"], layout, f"{where} test") if "test" in thing else None
        return replace(given(thing["train"], layout, f"{where} train"), test=test)
    if isinstance(thing, Mapping) and not thing.keys() >= {"x", "y"}:
        require_distinct(thing, f"the clients of {where}")
        clients = thing.items()
    elif isinstance(thing, list | tuple) and not _is_pair(thing):
        clients = enumerate(thing)
    if clients is None:
        return InMemory(parts={where: portion(thing, layout, where)})
    names = ((f"{where}, client {name}", one) for name, one in clients)
    if not (parts := {name: portion(one, layout, name) for name, one in names}):
        raise DataError(f"{where}: expected records of at least one client, got none.")
    return InMemory(parts=parts, divided=True)


def portion(thing: Any, layout: Layout, where: str) -> Portion:
    """Convert one portion: the records of one client, or of all. Raises DataError if it has none of FORMS."""
    if isinstance(thing, Dataset | Arrays):
        return thing
    if _is_pair(thing):
        thing = dict(zip("xy", thing, strict=True))
    if isinstance(thing, Mapping) and thing.keys() >= {"x", "y"}:
        if more := thing.keys() - {"x", "y", layout.client_column}:
            raise DataError(
                f"{where}: expected the arrays 'x' and 'y', and that of `client_column` if the study has "
                f"one, got {some(sorted(map(repr, more)))} besides. Leave it out. If these are names of "
                "clients, pass a list of their records, or give 'x' and 'y' other names."
            )
        x, y = (array_of(thing[name], f"{where}, {name}") for name in "xy")
        clients = thing.get(layout.client_column) if layout.client_column else None
        return Arrays(x=x, y=y, clients=None if clients is None else np.asarray(clients))
    if (table := frame_of_table(thing)) is not None:
        return table
    if hasattr(thing, "column_names") and hasattr(thing, "with_format"):
        return _from_columns(thing, layout, where)
    if hasattr(thing, "__len__") and hasattr(thing, "__getitem__") and not isinstance(thing, str | bytes):
        return _from_items(thing, where)
    raise DataError(f"{where}: expected {FORMS}; got {type(thing).__name__}.")


def _is_pair(thing: Any) -> bool:
    """Whether a tuple is (x, y). Otherwise its entries are the records of one client each."""
    return (
        isinstance(thing, tuple)
        and len(thing) == 2
        and all(isinstance(one, list) or hasattr(one, "__array__") for one in thing)
        and not (hasattr(thing[1], "columns") and hasattr(thing[1], "iloc"))
    )


def array_of(thing: Any, where: str) -> NDArray[Any]:
    """Convert an array of numpy or torch, or nested lists. Raises DataError for ragged or masked ones.

    A tensor is detached. numpy has no bfloat16, so float32 takes its place, which holds each such number.
    """
    if hasattr(thing, "detach"):
        thing = thing.detach().cpu()
        thing = thing.float() if str(thing.dtype) == "torch.bfloat16" else thing
    try:
        found = np.asarray(thing)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{where}: expected an array, each entry of one shape, got: {error}.") from None
    if isinstance(thing, np.ma.MaskedArray) and np.ma.is_masked(thing):
        raise DataError(f"{where}: expected a value everywhere, got a masked array. Fill it first.")
    if found.dtype.kind == "O" and found.size and not isinstance(found.flat[0], str):
        kind = type(found.flat[0]).__name__
        raise DataError(f"{where}: expected an array of numbers, got Python objects such as {kind}. Cast it.")
    return found


def _from_items(thing: Any, where: str) -> Arrays:
    """Convert a data set with items (x, y), such as torch's."""
    if isinstance(thing, np.ndarray) or hasattr(thing, "detach"):
        raise DataError(f"{where}: expected records and targets as (x, y), got one array.")
    try:
        items = [thing[place] for place in range(len(thing))]
    except Exception as error:  # the data set is the caller's code: it can raise any exception
        raise DataError(
            f"{where}: expected a data set with a length and items (x, y), got "
            f"{type(error).__name__}: {error}."
        ) from error
    if not items:  # of no shape, until `prepare` gives it that of the others
        return Arrays(x=np.empty((0, 0)), y=np.empty(0))
    found: dict[str, list[NDArray[Any]]] = {"x": [], "y": []}
    for row, item in enumerate(items, 1):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{where}, row {row}: expected items (x, y), got {type(item).__name__}. Pass {FORMS}."
            )
        for (what, entries), value in zip(found.items(), item, strict=True):
            entries.append(array_of(value, f"{where}, row {row}, {what}"))
            if entries[-1].shape != entries[0].shape:
                raise DataError(
                    f"{where}, {what}, row {row}: expected shape {entries[0].shape} as in row 1, got "
                    f"{entries[-1].shape}."
                )
    return Arrays(x=np.stack(found["x"]), y=np.stack(found["y"]))


def _from_columns(thing: Any, layout: Layout, where: str) -> pd.DataFrame | Arrays:
    """Convert a Hugging Face data set to a table, or to arrays if its one feature column holds arrays."""
    import pandas as pd

    names = list(thing.column_names)
    features = getattr(thing, "features", None) or {}
    # numpy has one type for a column: beside one missing number, whole ones would become floats.
    cells = thing.with_format(None)[:]
    numbers = thing.with_format("numpy")[:]
    arrays = {
        name: _of_shape(numbers[name], shape)
        if (shape := _shape_of(features.get(name)))
        else array_of(numbers[name], f"{where}, column {name!r}")
        for name in names
        if name not in layout.ignore and type(features.get(name)).__name__ not in ("Value", "ClassLabel")
    }
    shaped = [name for name, values in arrays.items() if values.ndim > 1]
    if not shaped:
        return pd.DataFrame(cells, dtype=object)
    apart = {*layout.target, *layout.ignore, layout.client_column}
    inputs = [name for name in names if name not in apart]
    if inputs != shaped or len(layout.target) != 1 or layout.target[0] not in names:
        raise DataError(
            f"{where}: expected one column of arrays and a `target`, or columns of single values, got "
            f"{', '.join(map(repr, names))} with arrays in {', '.join(map(repr, shaped))}. Leave out the "
            "others by `ignore` under [data]."
        )

    def objects(name: Any) -> NDArray[Any]:
        return pd.Series(list(cells[name]), dtype=object).to_numpy()

    target, whose = layout.target[0], layout.client_column
    y = objects(target) if layout.count else array_of(numbers[target], f"{where}, column {target!r}")
    return Arrays(x=arrays[inputs[0]], y=y, clients=objects(whose) if whose in names else None, by_name=True)


def _shape_of(feature: Any) -> tuple[int, ...]:
    """The shape that a column's type of Hugging Face states, or () if it states none."""
    shape = getattr(feature, "shape", None) or (getattr(feature, "length", -1),)
    inner = getattr(feature, "feature", None)
    whole = (*shape, *_shape_of(inner)) if getattr(inner, "feature", None) is not None else tuple(shape)
    return whole if all(isinstance(size, int) and size > 0 for size in whole) else ()


def _of_shape(rows: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Arrays of one shape, float32 (n, *shape). A row of another shape, or without numbers, becomes nan."""
    found = np.full((len(rows), *shape), np.nan, np.float32)
    for place, row in enumerate(rows):
        try:
            values = np.asarray(row, np.float32)
        except (TypeError, ValueError):
            continue
        if values.shape == shape:
            found[place] = values
    return found
