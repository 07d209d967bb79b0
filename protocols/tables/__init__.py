"""The published tables of the systems here, as `securefl reproduce` lists them."""
