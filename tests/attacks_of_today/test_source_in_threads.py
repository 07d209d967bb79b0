"""Two threads that draw from one keyed source of noise at its first word may draw the same noise."""

from __future__ import annotations

import sys
import threading

import numpy as np

from securefl.core.keys import SecretKey
from securefl.dp import Source


def test_two_threads_draw_no_word_twice() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    twice = 0
    try:
        for number in range(1500):
            source = Source(SecretKey(number.to_bytes(32, "little")))
            gate, found = threading.Barrier(4), []

            def draw(source=source, gate=gate, found=found) -> None:  # type: ignore[no-untyped-def]
                gate.wait()
                found.append(source.words(4))

            threads = [threading.Thread(target=draw) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            twice += len(np.unique(np.concatenate(found))) < 16
    finally:
        sys.setswitchinterval(before)
    assert not twice, f"{twice} of 1500 sources gave two threads the same words"
