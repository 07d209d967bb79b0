"""The command line: one module for each word that a person types."""
