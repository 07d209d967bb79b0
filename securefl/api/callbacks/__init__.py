"""Callbacks for `securefl.run`, which show finished rounds in other tools."""

from securefl.api.callbacks.mlflow import MLflow
from securefl.api.callbacks.tensorboard import TensorBoard

__all__ = ["MLflow", "TensorBoard"]
