"""The nouns of the package, pure: nothing here reads a file, a clock or a socket."""
