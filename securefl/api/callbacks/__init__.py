"""Callbacks of `securefl.run` that show finished rounds in MLflow and TensorBoard."""

from securefl.api.callbacks.mlflow import MLflow
from securefl.api.callbacks.tensorboard import TensorBoard

__all__ = ["MLflow", "TensorBoard"]
