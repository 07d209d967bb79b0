"""Callbacks for `securefl.run`, which show finished rounds in other tools."""

from securefl.callbacks.mlflow import MLflow
from securefl.callbacks.tensorboard import TensorBoard

__all__ = ["MLflow", "TensorBoard"]
