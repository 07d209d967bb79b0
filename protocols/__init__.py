"""Published federated-learning systems, each a small composition over `securefl`."""

if __name__ == "protocols":  # the folder lies at the top of a checkout, where Python would find it
    raise ImportError("Expected `import securefl.protocols`, got `import protocols`. Use the longer name.")
