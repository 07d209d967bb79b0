"""What a server makes of the aggregated step, beside adding it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefl.algorithm.clients import State
from securefl.algorithm.queries import Floats


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """w + factor * step."""

    factor: float

    def apply(self, state: State, step: Floats) -> State:
        return State((state.broadcast + self.factor * step).astype(np.float32), state.memory)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam on the averaged step as a pseudo-gradient (Leroy et al. 2019), moments corrected for bias."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float = 1e-8

    def apply(self, state: State, step: Floats) -> State:
        zeros = np.zeros(len(step))
        turn = float(state.memory.get("adam_turn", np.zeros(1))[0]) + 1
        first = self.beta1 * state.memory.get("adam_first", zeros) + (1 - self.beta1) * step
        second = self.beta2 * state.memory.get("adam_second", zeros) + (1 - self.beta2) * step**2
        unbiased = first / (1 - self.beta1**turn)
        scale = np.sqrt(second / (1 - self.beta2**turn)) + self.epsilon
        model = (state.broadcast + self.learning_rate * unbiased / scale).astype(np.float32)
        moments = {"adam_turn": np.array([turn]), "adam_first": first, "adam_second": second}
        return State(model, state.memory).remember(**moments)


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """w + the mean of the steps so far, older ones weighed down by `beta` a round: FedAdam's first moment."""

    beta: float

    def apply(self, state: State, step: Floats) -> State:
        turn = float(state.memory.get("momentum_turn", np.zeros(1))[0]) + 1
        mean = self.beta * state.memory.get("momentum", np.zeros(len(step))) + (1 - self.beta) * step
        # corrected for bias: the first step counts whole
        model = (state.broadcast + mean / (1 - self.beta**turn)).astype(np.float32)
        return State(model, state.memory).remember(momentum_turn=np.array([turn]), momentum=mean)
