"""One privacy ledger per data holder, and the events it composes."""
