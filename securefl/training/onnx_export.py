"""Export of a trained model to ONNX, for programs without this package. It needs the extra `onnx`.

The graph has one input `x` (n, *shape), the record as the model reads it, and one output `outputs`
(n, outputs), for a classification logits. The model's card is a JSON text in the file's metadata.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError
from securefl.core.installed import needing
from securefl.storage.files import write
from securefl.training.exported import FORMAT
from securefl.training.learnt import Learnt
from securefl.training.own_models import varied

TOLERANCE: Final = 1e-5
"""The largest difference between an output of the graph and of the model, beside outputs of size 1."""
_KEY: Final = "securefl"
_ROWS: Final = 3


def save_onnx(path: Path, learnt: Learnt, card: Mapping[str, Any]) -> None:
    """Write a model as ONNX, with its card in the metadata, and compare its outputs with the model's.

    Raises ConfigError without the extra `onnx`, for a shared part, and for a model that torch cannot export;
    and DataError if the model diverged.
    """
    with needing("onnx", f"to write {path}"):
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    if card["part"] == "shared":
        raise ConfigError(
            "Expected a whole model for ONNX, got the part that clients share: each client keeps the rest. "
            "Export one client's with --client."
        )
    problem = learnt.problem
    # Records that differ: the graph must not depend on their number or values.
    model, x = learnt.module(), varied(problem.model.blank(problem.shape), _ROWS)
    with torch.inference_mode():
        # The first pass also computes constants, such as a projection, which cannot be made while tracing.
        expected = model(x).float().numpy()
    if not np.isfinite(expected).all():
        raise DataError(
            "Expected a model with finite outputs, got nan or infinity: it diverged. Train it again."
        )
    made = onnx.load_from_string(_graph(model, x))
    onnx.helper.set_model_props(made, {_KEY: json.dumps({"format": FORMAT, "card": card}, sort_keys=True)})
    whole = made.SerializeToString()
    session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    (found,) = session.run(["outputs"], {"x": x.numpy()})
    if not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        raise ConfigError(
            f"Expected the outputs of the model from ONNX within {TOLERANCE:g}, got some that differ by "
            f"{np.abs(found - expected).max():.3g}. Export it as .safetensors."
        )
    write(path, whole)


def _graph(model: nn.Module, x: Tensor) -> bytes:
    with _quiet(), TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(
                model,
                (x,),
                file,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=["x"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
            )
        except Exception as error:  # the model may be a person's own: the exporter can raise any exception
            raise ConfigError(
                f"Expected a model that torch can export to ONNX, got {type(error).__name__}: "
                f"{str(error).splitlines()[0][:200] if str(error) else 'no reason'}. Export it as "
                ".safetensors."
            ) from None
        return file.read_bytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter warns of its own deprecated parts and of packages that no model here needs."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
