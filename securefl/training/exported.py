"""Export of a model to one safetensors file: values by their state-dict names, and a card about their origin.

safetensors has a JSON header and plain numbers, so reading needs no pickle. The card is a JSON text in the
header. A SHA-256 over card and values detects damage. It does not detect an attacker, who can change the file
and compute the digest again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from securefl.core.errors import ConfigError, DataError
from securefl.core.formats import VERSION
from securefl.core.text_safety import some
from securefl.storage.files import write

MOST_PARAMETERS: Final = 10**8
"""The most parameters of a model. They take 400 MB, and a run holds several models at a time. The largest
packaged model has 6 million."""
Tensors = Mapping[str, NDArray[np.float32]]


class Weights(NamedTuple):
    """The values of a file by their names, and its card; None if another program wrote the file."""

    tensors: dict[str, NDArray[np.float32]]
    card: Mapping[str, Any] | None


FORMAT: Final = f"securefl {VERSION} model"
LARGEST_CARD: Final = 2**20
_LARGEST_HEADER: Final = 8 * LARGEST_CARD
"""The most bytes of a header: the card with escaped quotes, and the names of many entries."""
_LARGEST: Final = 4 * MOST_PARAMETERS + _LARGEST_HEADER + 8
_KEY: Final = "securefl"
_AGAIN: Final = "Export the model again, or get the file again."
_PICKLES: Final = (b"\x80", b"PK\x03\x04", b"(", b"c")
"""The first bytes of a pickle, and of the archive of pickles that torch.save writes."""


def save(path: Path, tensors: Tensors, card: Mapping[str, Any]) -> None:
    """Write a model and its card atomically. The same model and card give the same bytes.

    Raises DataError if a value is not finite, or if the card has more than 2^20 characters.
    """
    from safetensors.numpy import save as encoded

    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise DataError(
                f"Expected finite values in the model, got nan or infinity in {name}: it diverged. "
                "Lower the learning rate, or add less noise, and run again."
            )
    text = _text(card)
    if len(text) > LARGEST_CARD:
        raise DataError(f"Expected a card of at most {LARGEST_CARD:,} characters, got {len(text):,}.")
    # A single key, since the library writes several in an order that changes from run to run.
    header = _text({"format": FORMAT, "card": card, "digest": _digest(text, tensors)})
    # The library writes other orders than C as they lie in memory, under a shape that they do not have.
    rows = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    write(path, encoded(rows, metadata={_KEY: header}))


def read(path: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """Read the values and the card of an exported model. No code in the file is run.

    Raises ConfigError if there is no such file, and DataError if it is not an exported model, is too large,
    was damaged, or holds a pickle.
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
        raise DataError(
            f"Expected float32 values in {path}, got {tensors[strange[0]].dtype} in {strange[0]!r}. {_AGAIN}"
        )
    if digest != _digest(_text(card), tensors):
        raise DataError(f"Expected {path} unchanged, got other values or another card. {_AGAIN}")
    return tensors, card


def weights_of(path: Path) -> Weights:
    """Read the values in a safetensors file of another program, or in an exported model with its card.

    Values of 64 and 16 bits become float32. Raises ConfigError if there is no such file, and DataError if it
    is not safetensors, is too large, damaged, or has a value that is not finite, or a variance below zero.
    """
    from safetensors import SafetensorError, safe_open

    _require_fitting(path)
    try:
        with safe_open(path, framework="pt") as file:  # numpy has no bfloat16
            ours = _KEY in (file.metadata() or {})
            found = {} if ours else {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, OSError, AttributeError) as error:
        raise DataError(
            f"Expected {path} as a whole safetensors file, got damage ({error}). Write it again."
        ) from None
    plain = {name: own.float().numpy() for name, own in found.items() if own.is_floating_point()}
    weights = Weights(*read(path)) if ours else Weights(plain, None)
    for name, own in weights.tensors.items():
        if not np.isfinite(own).all() or (name.endswith("running_var") and (own < 0).any()):
            raise DataError(
                f"Expected finite values in {path}, and no variance below zero, got others in {name!r}. Take "
                "another file."
            )
    return weights


def _require_fitting(path: Path) -> None:
    """Check size and first bytes before anything is parsed. Raises as `read` does."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for ever.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(number, "rb") as source:
            found = os.fstat(source.fileno())
            first = source.read(8) if stat.S_ISREG(found.st_mode) else b""
    except (OSError, ValueError) as error:  # ValueError: a path with the byte 0
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"Expected to read {str(path)!r}, got {why}. Check the path.") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"Expected an exported model at {path}, got no regular file. Check the path.")
    if found.st_size > _LARGEST:
        raise DataError(f"Expected {path} of at most {_LARGEST:,} bytes, got {found.st_size:,}.")
    size = int.from_bytes(first, "little")
    if len(first) == 8 and size <= min(_LARGEST_HEADER, found.st_size - 8):
        return
    if first.startswith(_PICKLES):
        raise DataError(
            f"Expected {path} as safetensors, got a file that begins like a pickle, as torch.save writes it. "
            "It is not opened: a pickle can run any code. Take the file that `securefl export` wrote."
        )
    if path.suffix.lower() == ".onnx":
        raise DataError(
            f"Expected a model of the ending .safetensors, got {path}: an .onnx file is for other programs. "
            "Export the run again with -o MODEL.safetensors."
        )
    raise DataError(
        f"Expected {path} as safetensors, got {found.st_size:,} bytes that begin with {first!r}. {_AGAIN}"
    )


def fill(model: nn.Module, tensors: Tensors, path: Path, *, whole: bool, but: Collection[str] = ()) -> None:
    """Write the values into the model, in place. Raises ConfigError unless names and shapes fit the model.

    whole: whether all values of the model must be among `tensors`, but for those of the names `but`.
    """
    entries = {name: entry for name, entry in model.state_dict().items() if entry.is_floating_point()}
    said = f"Expected a model that fits {path}"
    if strange := [name for name in tensors if name not in entries]:
        raise ConfigError(f"{said}, got one without {some(strange, 3)}. Give the class that was trained.")
    if whole and (missing := [name for name in entries if name not in {*tensors, *but}]):
        statistics = all(name.endswith((".running_mean", ".running_var")) for name in missing)
        remedy = "Export one client's, by --client" if statistics else "Give the class that was trained"
        raise ConfigError(f"{said}, got one that also has {some(missing, 3)}. {remedy}.")
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
    """The card in a header, and the digest next to it."""
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
