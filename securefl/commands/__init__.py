"""The command line: a module for every word that a person types.

What a command works with is imported in its function. A page of help must not wait for torch.
"""
