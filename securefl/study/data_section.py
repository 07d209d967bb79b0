"""The section [data] of a study: its records, and how they are dealt to clients."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from securefl.core.errors import ConfigError
from securefl.core.installed import entry_points
from securefl.core.ranges import Count, Decay, Range, Ranged, refused
from securefl.core.reading import Mistakes, convert, near
from securefl.data import NAMES, Partition, data_folder
from securefl.data.columns import Column, Word, key_of, word_of
from securefl.data.layout import Dialect, Layout
from securefl.data.networks import NAMED, is_name
from securefl.data.scaling import Scaling
from securefl.storage.own_code import names_code

GROUP: Final = "securefl.data"
"""The group of the entry points that `source` can name."""
_OWN: Final = (
    "target",
    "classes",
    "client_column",
    "ignore",
    "columns",
    "csv",
    "label_map",
    "test",
    "test_share",
    "network",
    "public_num_examples",
)
"""Keys that describe a person's own records. A packaged data set needs none of them."""
_WORD: Final = re.compile(r"[\w-]+")
_IN_DATA_FOLDER: Final = "$SECUREFL_DATA/"
"""The prefix of a path in the folder of data sets, for studies that have no folder of their own."""


def _clients(count: int | None) -> str | None:
    return None if count is None else f"{count:,} client{'' if count == 1 else 's'}"


def _records(count: int | None) -> str | None:
    return None if count is None else f"{count:,} records"


@dataclass(frozen=True, kw_only=True)
class DataSection(Ranged):
    """The section [data]: a study's records, and how they are dealt to clients.

    source: a data set's name, `module:name` of a function, or a file or folder beside the study. A path in
    the folder of data sets begins with `$SECUREFL_DATA/`. A caller in Python that passes records leaves it
    out. clients: N, by default the number in the records (partition "natural"). partition: how records are
    dealt to clients, see `Partition`. records: the number of training records in all, drawn by the seed, by
    default all. holdout: the share of a client's records that it tests on and never trains on. test_clients:
    clients beyond `clients` that take part in no round; the server tests on their records, in place of the
    data set's test part. validation: the share of all test records that are for choosing settings, by the
    content of each. test_on: "test" tests on the others, "validation" on these alone, so that a setting is
    chosen by records that measure nothing. scaling: public constants `mean` and `deviation`, one or one for
    each channel; each value x becomes (x - mean) / deviation. download: fetch missing files first.

    For a person's own records:
    target: the column to predict, or the columns of a regression or of several labels, of which each has the
    same two classes. classes: the labels in order, or their number if they are 0, 1, and so on. 0 is a
    regression. client_column: the column that names the client of
    each record. ignore: the columns that are left out. columns: the public declaration of each column, by its
    name, see `Column`. csv: the `delimiter`, the `decimal` sign and the `encoding` of a .csv, and the words
    for an `empty` cell, by default those of a plain one. label_map: for a client with codes of its own, the
    label of each code; a client of a folder of files has the name of its file.
    test: a file with the server's records. test_share: the probability that a record becomes the server's, by
    default 0.3 if no test part is given. public_num_examples: the number of records that other parties assume
    for each client, if the true number is private. network: the name of the network that computed the
    records, if their file does not name it, or "none" if no network did.

    features: the network that computes features of the records, which the model then sees in their place. It
    is an entry point of `securefl.networks`, or `module:name` of a function that makes one. `network` then
    describes this network.
    """

    source: str | None = None
    clients: Count | None = field(default=None, metadata={"words": _clients})
    partition: Partition = field(default_factory=lambda: Partition(kind="natural"))
    records: Count | None = field(default=None, metadata={"words": _records})
    holdout: Decay = 0.0
    test_clients: Annotated[int, Range("[0, inf)")] = 0
    validation: Decay = 0.0
    test_on: Literal["test", "validation"] = "test"
    scaling: Scaling | None = None
    download: bool = False
    target: str | tuple[str, ...] = ()
    classes: int | tuple[Word, ...] | None = None
    client_column: str | None = None
    ignore: tuple[str, ...] = ()
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    csv: Dialect | None = None
    label_map: Mapping[str, Mapping[str, Word]] = field(default_factory=dict, hash=False)
    test: str | None = None
    test_share: Annotated[float, Range("(0, 1)")] | None = None
    public_num_examples: Annotated[int, Range("[1, 2^31]")] | None = None
    network: str | None = None
    features: str | None = None

    def refusals(self) -> Iterator[str]:
        if self.clients is None and self.partition.kind != "natural":
            yield f"Missing key `clients` for partition {self.partition.kind!r}; add it."
        if self.test_on == "validation" and not self.validation:
            yield (
                'Expected `validation` beside test_on = "validation", the share of the test records that '
                "choose settings, got none. Write one, such as validation = 0.5."
            )
        if self.scaling is not None and self.features is not None:
            yield (
                "Expected `scaling` or `features`, got both: the network scales its input itself. Leave "
                "`scaling` out."
            )
        own_network = self.features is not None and names_code(self.features)
        said = [key for key in _OWN if getattr(self, key) not in (None, (), {})]
        given = [key for key in said if not (key == "network" and own_network)]
        if self.network is not None and self.features is not None and not own_network:
            yield f"Expected no `network` beside features = {self.features!r}, which names it. Leave it out."
        if self.source in NAMES and given:
            yield (
                f"Expected no `{given[0]}` for the packaged data set {self.source!r}, which sets it by "
                "itself. Leave it out."
            )
        if self.network is not None and not is_name(self.network):
            yield f'Expected `network` as {NAMED}, or "none", got {self.network[:80]!r}.'
        if sum((self.test is not None, self.test_share is not None, self.test_clients > 0)) > 1:
            yield "Expected one of `test`, `test_share` and `test_clients`, got several. Keep one."
        if isinstance(self.classes, int) and self.classes != 0 and not 2 <= self.classes <= 100_000:
            yield f"Expected 2 to 100,000 classes, or 0 for a regression, got {self.classes}."
        if self.csv is not None:
            yield from refused(self.csv.require)
        wrong = [*refused(lambda: self.layout)]
        yield from wrong or self._refused_columns(self.layout)

    def _refused_columns(self, layout: Layout) -> Iterator[str]:
        labels = layout.labels
        if isinstance(self.classes, tuple) and not 2 <= len(labels) == len(set(labels)):
            yield f"Expected two labels or more in `classes`, each once, got {self.classes}."
        if len(layout.target) > 1 and layout.count not in (None, 0, 2):
            yield (
                f"Expected one `target` of classes, or several with two classes each, got "
                f"{len(layout.target)} columns and {layout.count} classes."
            )
        for what, names in (("target", layout.target), ("ignore", layout.ignore)):
            if len(set(names)) < len(names):
                yield f"Expected each column once under `{what}`, got {list(names)}."
        for client, codes in self.label_map.items():
            found = [word_of(label) for label in codes.values()]
            if not found or len({*found}) < len(found) or {*found} - {*labels}:
                yield (
                    f"label_map.{key_of(client)}: Expected for each code another one of the labels in "
                    f"`classes`, got {dict(codes)}."
                )
            if len({*map(word_of, codes)}) < len(codes):
                yield f"label_map.{key_of(client)}: Expected each code once, got {list(codes)}."
        apart = [*layout.target, *layout.ignore, *([layout.client_column] if layout.client_column else [])]
        if twice := [name for name in apart if apart.count(name) > 1]:
            yield f"Expected column {twice[0]!r} as target, client or ignored, got several."
        for name, column in self._columns.items():
            if name == layout.client_column and set(self.columns[name]) == {"categories"}:
                continue
            target = name in layout.target and not layout.count
            plain = column.categories is None and column.missing is None
            if (name in apart and not target) or (target and not plain):
                what = "a `range` at most for this target" if target else "no declaration of this column"
                if name == layout.client_column:
                    what = "`categories` alone, the names of all clients"
                yield f"columns.{key_of(name)}: Expected {what}. Leave the rest out."

    @cached_property
    def layout(self) -> Layout:
        """The layout of a person's own records. Raises ConfigError if a column's declaration is invalid."""
        columns = dict(self._columns)
        clients = columns.pop(self.client_column or "", Column())
        return Layout(
            target=(self.target,) if isinstance(self.target, str) else self.target,
            classes=self.classes,
            client_column=self.client_column,
            clients=clients.words,
            ignore=self.ignore,
            columns=columns,
            csv=self.csv or Dialect(),
            label_map=self.label_map,
        )

    @cached_property
    def _columns(self) -> Mapping[str, Column]:
        found, mistakes = dict[str, Column](), Mistakes()
        for name, table in self.columns.items():
            with mistakes.noted():
                found[name] = convert(Column, table, f"data.columns.{key_of(name)}")
        mistakes.require_none()
        return found

    @property
    def packaged(self) -> bool:
        """Whether the records are a packaged data set's, whose size and clients are published."""
        return self.source in NAMES


def data_points() -> dict[str, EntryPoint]:
    """The data sets of installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def path_of(source: str, home: Path | None, where: str = "[data]") -> Path:
    """The path of a file or folder that a study names. where: its section, for errors.

    Raises ConfigError if it is relative, and the study has no folder.
    """
    if source.startswith(_IN_DATA_FOLDER):
        return data_folder().absolute() / source.removeprefix(_IN_DATA_FOLDER)
    path = Path(os.path.expanduser(source))  # Path's own raises for a user who is not known
    if home is None and not path.is_absolute():
        raise ConfigError(
            f"{where} Expected an absolute path in a study without a file, got {source!r}. Write it from the "
            "root, or save the study as a file beside it."
        )
    return path if home is None else home / path


def require_source(section: DataSection, home: Path | None) -> None:
    """Raises ConfigError unless the source is a data set's name, code, a file or a folder."""
    source = section.source
    if source is None:
        raise ConfigError(
            "[data] Missing key `source`; add it, or pass the records from Python: securefl.run(study, "
            "data=...)."
        )
    # A missing file in the folder of data sets is reported when it is read, like those of a named data set.
    if source in NAMES or source.startswith(_IN_DATA_FOLDER):
        return
    if names_code(source) or source in (points := data_points()):
        return
    known = [*NAMES, *points]
    is_word = _WORD.fullmatch(source) is not None
    if (home is None and is_word) or not os.path.exists(path_of(source, home)):
        where = "" if home is None else f" (in {home.absolute()})"
        beside = [] if home is None else [path.name for path in home.iterdir()]
        raise ConfigError(
            f"[data] Expected source among {', '.join(known)}, a function as `module:name`, or a file or "
            f"folder beside the study{where}, got {source!r}{near(source, [*known, *beside])}."
        )
