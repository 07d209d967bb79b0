"""The command `features`: computes features of images, arrays or texts by a frozen network."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from securefl.commands.choices import PATH
from securefl.commands.printing import echo
from securefl.commands.telling import bar, with_trust
from securefl.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from securefl.training.networks import Network

IMAGES: Final = "efficientnet_lite0"
TEXTS: Final = "wordllama"
_MOST_LABELS: Final = 1000
"""The most classes that the command prints."""


@click.command(epilog="Example:  securefl features photos --out photos.npz")
@click.argument("source")
@click.option(
    "--out",
    required=True,
    type=PATH,
    help="A .npz file for the training part. The test part, if there is one, gets a file beside it.",
)
@click.option(
    "--records", type=click.IntRange(min=1), help="The number of first records of each part to use."
)
@click.option(
    "--network",
    metavar="NAME",
    help=f"An installed network (default: {IMAGES}, for texts {TEXTS}), or module:name of a class or "
    "function of yours in this folder or an installed package. Its code is run.",
)
@click.option("--about", help="Your own network in a few words: what it is and what it was trained on.")
@click.option("--text", metavar="COLUMN", help="The column of texts, if SOURCE is a table.")
@click.option("--target", metavar="COLUMN", help="The column to predict, if SOURCE is a table.")
@click.option(
    "--size",
    type=click.IntRange(8, 1024),
    default=112,
    show_default=True,
    help="The width and height in pixels to which images of a folder are scaled.",
)
@with_trust
def features(
    source: str,
    out: Path,
    records: int | None,
    network: str | None,
    about: str | None,
    text: str | None,
    target: str | None,
    size: int,
    trusted: tuple[Path, ...],
) -> None:
    """Compute features of SOURCE by a frozen network, for protocols such as `heads`.

    SOURCE is a packaged data set, a folder of images (a subfolder for each class, or `train` and `test` with
    such subfolders), a .npz or .npy of records (n, ...), or with --text a table (.csv, .parquet).

    OUT holds `x` (float32), `y`, and in texts the network and the file's version. A file with "-test" in its
    name holds those of the test part. A study names both under [data], as `source` and `test`. Without
    classes, OUT has no `y`: such records can be predicted. Features are kept in the user's cache, so a
    stopped command can be resumed.
    """
    from securefl.data.networks import outside
    from securefl.training import single_thread

    if out.suffix != ".npz":
        raise ConfigError(f"Expected --out with the ending .npz, got {out}.")
    if target is not None and text is None:
        raise ConfigError(f"Expected --text, the column of texts, beside --target {target!r}, got none.")
    single_thread()
    parts = _parts(source, text, target, size)
    chosen = _network(network or (IMAGES if text is None else TEXTS), about, source, text, trusted)
    for part in parts:  # before anything is written
        if chosen.tokens is None:
            chosen.width(part.read(part.records[:1]).shape[1:])
    echo(outside(chosen.about, source), err=True)
    for note in (note for part in parts for note in part.notes):
        echo(note, err=True)
    for part in parts:
        _write(part, chosen, out.with_name(f"{out.stem}{part.ending}.npz"), records)
    for line in _toml(out, parts):
        click.echo(line, err=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSource:
    """Records to read in slices, so that a folder of images need not fit into memory.

    ending: of the file's name. records: arrays, files or texts. `read` makes of some what a network reads.
    y: the targets (n, ...), or None. notes: sentences on what reading loses.
    """

    records: Sequence[Any] | NDArray[Any]
    y: NDArray[Any] | None
    ending: str = ""
    notes: Sequence[str] = ()
    read: Callable[[Any], Any] = lambda records: records


def _parts(source: str, text: str | None, target: str | None, size: int) -> list[FeatureSource]:
    from securefl.core.reading import near
    from securefl.data import NAMES, load

    path = Path(os.path.expanduser(source))
    if text is not None:
        return [_of_table(path, text, target)]
    if source in NAMES:
        split = load(source)
        return [
            FeatureSource(records=own.x, y=own.y, ending=ending)
            for own, ending in ((split.train, ""), (split.test, "-test"))
        ]
    if not os.path.exists(path):
        raise ConfigError(
            f"Expected a data set among {', '.join(NAMES)}, or a file or folder, got {source!r}"
            f"{near(source, NAMES)}. Check the path."
        )
    if not path.is_dir():
        return [_of_array(path)]
    if {own.name for own in path.iterdir() if not own.name.startswith(".")} == {"train", "test"}:
        return [_of_folder(path / "train", size), _of_folder(path / "test", size, "-test")]
    return [_of_folder(path, size)]


def _of_folder(folder: Path, size: int, ending: str = "") -> FeatureSource:
    import numpy as np

    from securefl.data.images import images_in, notes_on, read_images

    found = images_in(folder)
    return FeatureSource(
        records=found.files,
        notes=notes_on(found.files),
        ending=ending,
        read=lambda files: read_images(files, size),
        y=None if found.labels is None else np.array(found.labels),
    )


def _of_array(path: Path) -> FeatureSource:
    """The records of a .npz or .npy. Pixels of 8 or 16 bits without a sign become numbers from 0 to 1."""
    import numpy as np

    from securefl.data.networks import network_of
    from securefl.data.tables import read_records, targets_in

    if path.suffix.lower() not in (".npz", ".npy"):
        raise ConfigError(f"Expected --text, the column of texts, for the table {path}, got none.")
    if (by := network_of(path)) not in ("", "none"):
        raise DataError(f"{path}: expected records, got features that {by!r} computed. Take the records.")
    found: Any = read_records(path)
    if found.ndim < 2 or found.dtype.kind not in "iufb" or not len(found):
        raise DataError(
            f"{path}: expected records as numbers of shape (n, ...), got {found.dtype} {found.shape}."
        )
    scale = np.float32(np.iinfo(found.dtype).max if found.dtype in (np.uint8, np.uint16) else 1)
    return FeatureSource(
        records=found,
        read=lambda own: own.astype(np.float32) / scale,
        y=targets_in(path),
    )


def _of_table(path: Path, text: str, target: str | None) -> FeatureSource:
    import numpy as np

    from securefl.core.reading import near
    from securefl.data.columns import CORRECT, Cell
    from securefl.data.describe import GUESS, guessed
    from securefl.data.layout import Dialect
    from securefl.data.tables import read_records

    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ConfigError(f"Expected a table (.csv, .parquet) for --text, got {path}.")
    frame: Any
    frame, said = guessed(path)
    for name in filter(None, (text, target)):
        if list(frame.columns).count(name) != 1:
            columns = ", ".join(map(repr, list(frame.columns)[:12]))
            raise DataError(
                f"{path}: expected one column {name!r}, got {columns}{near(name, map(str, frame.columns))}."
            )
    if (written := said.get("csv", {})).get("empty"):  # of columns of numbers: in a text "?" is a word
        frame = frame.assign(**{text: read_records(path, Dialect(**{**written, "empty": ()}))[text]})
    texts = frame[text].to_numpy(object)
    bad = np.array([not isinstance(one, str) or not one.strip() for one in texts], bool)
    Cell(str(path), text).refuse(bad, texts, "a text")
    return FeatureSource(
        records=texts.tolist(),
        notes=[f"{path}: csv = {said['csv']}. {GUESS}"] if said else (),
        y=None if target is None else _targets(frame[target], Cell(str(path), target, CORRECT)),
    )


def _targets(values: Any, cell: Any) -> NDArray[Any]:
    """The targets of a table as a file keeps them: whole numbers, other numbers, or words."""
    import numpy as np

    from securefl.data.columns import numbers_of, words_of

    words = words_of(values)
    cell.refuse(words == "", words, "a target")
    try:
        numbers = numbers_of(values, cell)
    except DataError:
        return words.astype(str)
    return numbers.astype(np.int64 if (numbers == np.round(numbers)).all() else np.float32)


def _network(
    word: str, about: str | None, source: str, text: str | None, trusted: tuple[Path, ...]
) -> Network:
    """The network by its word. Raises ConfigError if it reads other records than texts, or than numbers."""
    from securefl.data.networks import NAMED, is_name, of_own
    from securefl.storage.own_code import Namer, located, names_code
    from securefl.training.networks import made_by, named

    if names_code(word):
        made = made_by(located(word, Path.cwd(), Namer(trusted=trusted)), about or f"{word}, an own network")
        chosen = replace(made, about=of_own(made.about, made.name))
        if not is_name(chosen.about):
            raise ConfigError(f"Expected --about as {NAMED}, got {str(about)[:80]!r}. Shorten it.")
    elif about is not None:
        raise ConfigError(f"Expected no --about for {word!r}, which describes itself. Leave it out.")
    else:
        chosen = named(word)
    if (chosen.tokens is None) != (text is None):
        wanted = "numbers or images" if text is None else "text"
        raise ConfigError(f"Expected a network that reads {wanted} for {source}, got {word!r}. Take another.")
    return chosen


def _write(part: FeatureSource, network: Network, path: Path, records: int | None) -> None:
    import numpy as np

    from securefl.data.files import cache_folder
    from securefl.data.networks import FORMAT, FORMAT_KEY, KEY
    from securefl.storage.files import replacing
    from securefl.training.networks import PART

    kept, found = part.records[:records], []
    with bar("records", len(kept)) as tell:
        for start in range(0, len(kept), PART):
            read = part.read(kept[start : start + PART])
            rows = read if network.tokens is None else network.tokens(read)
            found.append(network.features(rows, cache_folder() / "features", lambda done: None))
            tell(start + len(rows))
    arrays = {"x": np.concatenate(found)} | ({} if part.y is None else {"y": part.y[:records]})
    arrays |= {KEY: np.array(network.about), FORMAT_KEY: np.array(FORMAT)}
    with replacing(path) as target:
        np.savez(target, allow_pickle=False, **arrays)
    click.echo(path)


def _toml(out: Path, parts: list[FeatureSource]) -> Iterator[str]:
    """The lines of [data] that read the files, if their labels are words."""
    words = (part.y for part in parts if part.y is not None and part.y.dtype.kind == "U")
    labels = sorted({label for y in words for label in y.tolist()})
    if 1 <= len(labels) <= _MOST_LABELS:
        yield "[data]"
        yield f'source = "{out.name}"'
        if len(parts) > 1:
            yield f'test = "{out.stem}-test.npz"'
        yield f"classes = {json.dumps(labels, ensure_ascii=False)}"
