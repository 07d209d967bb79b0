"""Privacy-hardened secure aggregation for federated learning."""

__version__ = "0.1.0"
