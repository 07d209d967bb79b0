"""A model as one file: values by the names of a state dict, and a card that says where they come from.

The format is safetensors: a header in JSON and plain numbers, which nothing has to be unpickled for. The card
is a JSON text in the header. A SHA-256 over card and values shows damage. It shows no malice: whoever can
write the file can digest anew.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.storage.files import write
from securefl.training.models import MOST_PARAMETERS

Tensors = Mapping[str, NDArray[np.float32]]
FORMAT: Final = "securefl model 1"
LARGEST_CARD: Final = 2**20
_LARGEST_HEADER: Final = 8 * LARGEST_CARD
"""Room for the card, whose quotes are escaped, and for the names of many entries."""
_LARGEST: Final = 4 * MOST_PARAMETERS + _LARGEST_HEADER + 8
_KEY: Final = "securefl"
_AGAIN: Final = "Export the model again, or get the file again."
_PICKLES: Final = (b"\x80", b"PK\x03\x04", b"(", b"c")
"""How a pickle, and the archive that torch.save makes of pickles, begin."""


def save(path: Path, tensors: Tensors, card: Mapping[str, Any]) -> None:
    """Write a model, whole or not at all. The same model and card give the same bytes.

    Raises DataError for values that are not finite, and for a card of more than 2^20 characters.
    """
    from safetensors.numpy import save as encoded

    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise DataError(
                f"Expected finite values in the model, got others in {name}: it diverged. Lower the learning "
                "rate, or add less noise, and run again."
            )
    text = _text(card)
    if len(text) > LARGEST_CARD:
        raise DataError(f"Expected a card of at most {LARGEST_CARD:,} characters, got {len(text):,}.")
    # One key: the library writes several in an order that changes from run to run.
    header = _text({"format": FORMAT, "card": card, "digest": _digest(text, tensors)})
    write(path, encoded(dict(tensors), metadata={_KEY: header}))


def read(path: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """The values and the card of an exported model. Nothing in it is run.

    Raises ConfigError if there is no such file, and DataError if it is no exported model, is too
    large, was damaged, or holds a pickle.
    """
    from safetensors import SafetensorError, safe_open

    _require_fitting(path)
    try:
        with safe_open(path, framework="numpy") as file:
            header = (file.metadata() or {}).get(_KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, ValueError, TypeError, OSError, AttributeError) as error:
        raise DataError(
            f"Expected {path} as a whole exported model, got damage ({error}). {_AGAIN}"
        ) from None
    card, digest = _card(path, header)
    if strange := [name for name, values in tensors.items() if values.dtype != np.float32]:
        raise DataError(f"Expected float32 values in {path}, got others in {strange[0]!r}. {_AGAIN}")
    if digest != _digest(_text(card), tensors):
        raise DataError(f"Expected {path} as it was written, got other values or another card. {_AGAIN}")
    return tensors, card


def _require_fitting(path: Path) -> None:
    """Refuse by size and first bytes, before anything is parsed."""
    try:
        # a pipe would be waited for, for ever
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(number, "rb") as source:
            found = os.fstat(source.fileno())
            first = source.read(8) if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        why = "a folder" if error.errno == errno.EISDIR else error.strerror
        raise ConfigError(f"Expected to read {path}, got {why}. Check the path.") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"Expected an exported model at {path}, got no regular file. Check the path.")
    if found.st_size > _LARGEST:
        raise DataError(f"Expected {path} of at most {_LARGEST:,} bytes, got {found.st_size:,}.")
    size = int.from_bytes(first, "little")
    if len(first) == 8 and size <= min(_LARGEST_HEADER, found.st_size - 8):
        return
    if first.startswith(_PICKLES):
        raise DataError(
            f"Expected {path} as safetensors, got what looks like a pickle (torch.save writes such). It is "
            "not opened: a pickle runs what it likes. Take the file that `securefl export` wrote."
        )
    raise DataError(
        f"Expected {path} as safetensors, got {found.st_size:,} bytes of something else. {_AGAIN}"
    )


def _digest(card: str, tensors: Tensors) -> str:
    whole = hashlib.sha256(f"{FORMAT}\n{len(card.encode())}\n{card}\n".encode())
    for name in sorted(tensors):
        values = np.ascontiguousarray(tensors[name], dtype="<f4")
        whole.update(json.dumps([name, values.shape]).encode() + b"\n")
        whole.update(values.tobytes())
    return whole.hexdigest()


def _text(of: Mapping[str, Any]) -> str:
    return json.dumps(of, sort_keys=True)


def _card(path: Path, header: str) -> tuple[dict[str, Any], str]:
    """The card in a header, and the digest beside it."""
    try:
        found = json.loads(header)
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"format": str(form), "card": dict(card), "digest": str(digest)} if form == FORMAT:
            return card, digest
        case {"format": str(form)}:
            raise DataError(f"Expected {path} in the form {FORMAT!r}, got {form[:80]!r}. {_AGAIN}")
    raise DataError(
        f"Expected {path} as a model with a card, as `securefl export` writes it, got none. {_AGAIN}"
    )
