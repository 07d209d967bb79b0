"""An error of a peer says whose fault it was."""

from __future__ import annotations

from securefl.core.errors import RemoteProtocolError


def test_a_remote_error_names_the_peer_and_the_phase() -> None:
    error = RemoteProtocolError("Expected 3 values.", sender="client-0007", phase="contribution")
    assert (error.sender, error.phase) == ("client-0007", "contribution")
    assert str(error) == "client-0007 in phase contribution: Expected 3 values."
