"""The network that computed the features in a file, and the sentence that epsilon excludes its training data.

A .npz names the network in a text `network` beside `x` and `y`, a Parquet file in its metadata under the key
`network`. For other files, `[data] network` names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError, of_another_version
from securefl.core.formats import VERSION, version_in
from securefl.core.text_safety import is_legible
from securefl.data.array_files import npz
from securefl.storage.inputs import DAMAGED

KEY: Final = "network"
NONE: Final = "none"
"""The word for "no network computed these records"."""
_LONGEST: Final = 400
"""The most characters of a network's name."""
NAMED: Final = f"1 to {_LONGEST} printable characters, the network and what it was trained on"


FORMAT: Final = f"securefl {VERSION} features"
"""The text in a .npz of `securefl features`, under the key `FORMAT_KEY`. A .npz of one's own has none."""
FORMAT_KEY: Final = "securefl"


def arrays_of(path: Path, names: Sequence[str], others: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Arrays of a .npz, as `npz`. Raises DataError for one by `securefl features` of another version too."""
    found = npz(path, names, (*others, FORMAT_KEY))
    came = str(found.pop(FORMAT_KEY, FORMAT))
    if came != FORMAT:
        got = version_in(came.encode(errors="replace"))
        raise DataError(
            of_another_version(f"{path} as features of version {VERSION}", got, "compute them again")
        )
    return found


def network_of(path: Path) -> str:
    """The network that a file names, or "" if it names none.

    Raises DataError if the name is not a short printable text, or cannot be read without pickle.
    """
    read = {".npz": _in_arrays, ".parquet": _in_parquet}.get(path.suffix.lower())
    if read is None:
        return ""
    try:
        found = read(path)
    except (OSError, *DAMAGED) as error:
        raise DataError(f"{path}: expected a text as `{KEY}`, got: {error}.") from None
    if found is not None and not is_name(found):
        raise DataError(f"{path}: expected `{KEY}` as {NAMED}, got {found[:80]!r}. Write the file again.")
    return found or ""


def is_name(name: str) -> bool:
    """Whether a network's name is a short line of printable characters."""
    return 1 <= len(name.strip()) <= len(name) <= _LONGEST and is_legible(name)


def of_own(about: str, name: str) -> str:
    """The text that files of features have of a person's own network: its words, and what identifies it.

    name: of the network and its weights. By the words alone, two networks could not be told apart.
    """
    return f"{about}, SHA-256 {hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _in_arrays(path: Path) -> str | None:
    found = npz(path, [], [KEY]).get(KEY)
    if found is not None and (found.shape or found.dtype.kind != "U"):
        raise ValueError(f"type {found.dtype} of shape {found.shape}")
    return None if found is None else str(found)


def _in_parquet(path: Path) -> str | None:
    from pyarrow import parquet  # pyarrow is installed: the caller has read the file with it

    said = (parquet.read_metadata(path).metadata or {}).get(KEY.encode())
    return None if said is None else said.decode()


def one_network(files: Iterable[Path]) -> str:
    """The network that these files name, or "" if none does. Raises DataError if they name two networks."""
    found = [(path, name) for path in files if (name := network_of(path))]
    for path, name in found:
        if name != found[0][1]:
            raise DataError(
                f"{path}: expected features by {found[0][1]!r}, as {found[0][0].name} has, got some by "
                f"{name!r}. Compute both by one network."
            )
    return found[0][1] if found else ""


def agreed(in_files: str, declared: str | None, where: str) -> str:
    """The network that the files or the study name. Raises ConfigError if the two contradict each other."""
    if in_files and declared not in (None, in_files):
        raise ConfigError(
            f"[data] Expected network = {in_files!r}, as {where} says, got {declared!r}. Leave it out."
        )
    return in_files or declared or ""


def outside(network: str, where: str) -> str:
    """The statement that epsilon excludes a network's training data. network: its name, or "" if unknown."""
    if network == NONE:
        return ""
    if not network:
        return (
            f"No file names a network that computed the features in {where}. If there is one, its training "
            "data are outside epsilon; name it by [data] network."
        )
    return (
        f"The features in {where} were computed by {network}; its training data are outside epsilon, and "
        "must hold none of these records."
    )
