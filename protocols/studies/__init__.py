"""Studies that ship with the package; `securefl run NAME` runs one, `securefl studies` lists them."""
