"""What a client conceals has to fit what the server called for: where it does not, the client abstains.

Lengths and kinds come from the server's call, values from the client. A server that calls for others gets
silence, and costs nobody anything but its own sum.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from securefl.core.abstaining import Abstains, Reason
from securefl.core.errors import LocalProtocolError
from securefl.core.hiding import Conceal, Concealed


def of_size(name: str, size: int, conceal: Conceal) -> Conceal:
    """`conceal` for as many integers as were called for. Abstains for others."""

    def checked(integers: NDArray[Any]) -> Concealed:
        if integers.shape != (size,):
            raise Abstains(
                Reason.ORDER,
                f"It was called for {size} values of {name!r} and has {integers.size}, so it abstains.",
            )
        return conceal(integers)

    return checked


def of_kind(conceal: Conceal) -> Conceal:
    """`conceal` for a value of the kind that was called for. Abstains for another kind."""

    def checked(hidden: NDArray[Any]) -> Concealed:
        try:
            return conceal(hidden)
        except LocalProtocolError as error:
            raise Abstains(
                Reason.ORDER, f"It was called for another kind of value, so it abstains: {error}"
            ) from None

    return checked
