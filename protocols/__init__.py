"""Published federated-learning systems, each a small composition over `securefl`."""
