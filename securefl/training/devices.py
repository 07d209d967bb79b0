"""Where models are computed: on the CPU or on a GPU. Keys, noise and integer sums stay on the CPU.

The device follows the model. Whoever is given a model puts tensors where its parameters are, and gives back
arrays. A `Hardware` is the run's choice. It changes at most once, from the GPU to the CPU.

The same care for a while: one mode of all layers, one thread, products in full precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.core.errors import ConfigError, SecureFLError

Wanted = Literal["auto", "cpu", "cuda"]
"""What a study asks for. "auto": a GPU where one can be used, and else the CPU."""
CPU: Final = torch.device("cpu")
T = TypeVar("T")


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    first = next(model.parameters(), None)
    return CPU if first is None else first.device


@contextmanager
def full_precision(device: torch.device, *, cudnn: bool = True) -> Iterator[None]:
    """Products in float32 proper, by kernels that repeat, while the context lasts. On a CPU nothing changes.

    cudnn: whether convolutions may come from cuDNN. Without it each record's are computed on their own.
    """
    if device.type == "cpu":
        yield
        return
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    # TF32 keeps 10 bits of a factor, which is torch's default in convolutions: no agreement with a CPU would
    # be left to speak of, and a gradient would not be that of the model whose noise is accounted.
    with torch.backends.cudnn.flags(enabled=cudnn, benchmark=False, deterministic=True, allow_tf32=False):
        products.allow_tf32 = False
        try:
            yield
        finally:
            products.allow_tf32 = before


def records_apart(device: torch.device) -> AbstractContextManager[None]:
    """`full_precision` for passes in which no record may touch another (see `chunks`)."""
    # cuDNN takes another algorithm where memory is short, and how short depends on the number of records. So
    # one record more could change the bits of all others.
    return full_precision(device, cudnn=False)


# A GPU, and the choice of it -----------------------------------------------------------------------------


class Gpu(Protocol):
    """What is asked of a GPU."""

    @property
    def device(self) -> torch.device: ...

    def fault(self) -> str | None:
        """Why it cannot be used here. None if it can, "" if there is none at all."""
        ...

    def name(self) -> str: ...

    def facts(self) -> tuple[str, ...]:
        """What its kernels hang on: the model, its capability, and the versions of the libraries."""
        ...

    def emptied(self) -> None:
        """Give memory back that nothing uses."""
        ...


class Cuda:
    """The GPU that torch calls "cuda"."""

    device: Final = torch.device("cuda")

    def fault(self) -> str | None:
        # with an old driver torch warns, which a person who never asked for a GPU need not read
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            there = torch.cuda.is_available()
        if not there:
            return _first_line(told[0].message) if told else ""
        try:
            torch.zeros(1, device=self.device).item()
        except RuntimeError as error:
            return _first_line(error)
        return None

    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def facts(self) -> tuple[str, ...]:
        major, minor = torch.cuda.get_device_capability(self.device)
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return (self.name(), f"{major}.{minor}", torch.__version__, str(torch.version.cuda), str(cudnn))

    def emptied(self) -> None:
        torch.cuda.empty_cache()


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]


def _quiet(line: str) -> None:
    """Say nothing."""


class Hardware:
    """Where a run's models are computed. All problems of the run share it.

    falls_back: whether the run goes on on the CPU when the GPU's memory runs out. say: is told of that, once.
    left: is called before anything is computed on the CPU instead.
    """

    def __init__(
        self,
        gpu: Gpu | None = None,
        *,
        falls_back: bool = False,
        say: Callable[[str], None] = _quiet,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        self.gpu, self.falls_back, self.left = gpu, falls_back, left
        self._say = say
        self._trusted = False

    @property
    def device(self) -> torch.device:
        return CPU if self.gpu is None else self.gpu.device

    @property
    def words(self) -> str:
        """The device in words."""
        return "cpu" if self.gpu is None else f"{self.gpu.device.type}: {self.gpu.name()}"

    def put(self, model: nn.Module) -> nn.Module:
        """Move the model here. What `computed` reads of it falls back with it."""
        _PUT[model] = self
        try:
            return model.to(self.device)
        except RuntimeError as error:
            self.leave(error)
        return model.to(CPU)

    def leave(self, error: RuntimeError) -> None:
        """Go to the CPU for the rest of the run, since the GPU's memory ran out.

        Raises SecureFLError if the run must stay on the GPU, and `error` itself if it says something else.
        """
        if self.gpu is None or not of_memory(error):
            raise error
        told = f"{self.words} has too little memory for this"
        if not self.falls_back:
            raise SecureFLError(
                f'Expected enough memory under device = "cuda", but {told} ({_first_line(error)}). Run the '
                "same command with --device auto or cpu if it has that option, or begin anew with smaller "
                "cohorts or batches."
            ) from error
        gpu = self.gpu
        self.gpu = None
        gpu.emptied()
        self.left()
        self._say(f"{told}: the rest of the run is computed on the CPU.")

    def require(self, keeps_apart: Callable[..., bool]) -> None:
        """Go to the CPU before anything is computed, if the GPU does not keep records apart.

        keeps_apart: the verdict (see `audits.keeps_apart`). Raises ConfigError if the run must stay on the
        GPU.
        """
        try:
            fits = self.gpu is None or self._trusted or keeps_apart(self.gpu, say=self._say)
        except RuntimeError as error:  # nothing is remembered of a test that did not end
            self.leave(error)
            return
        if fits:
            self._trusted = True
            return
        told = f"{self.words} does not keep records apart, so it bears no epsilon per record"
        if not self.falls_back:
            raise ConfigError(
                f'Expected a GPU under device = "cuda" that passes the kink test, but {told} (see: securefl '
                'audit --device cuda). Set device = "auto" or "cpu" under [runtime], or by --device.'
            )
        self.gpu = None
        self._say(f"{told}: the run is computed on the CPU.")


_PUT: Final[WeakKeyDictionary[nn.Module, Hardware]] = WeakKeyDictionary()
_WITHOUT_MEMORY: Final = ("out of memory", "ALLOC_FAILED")
"""What CUDA's libraries say, whose errors have no class of their own."""


def of_memory(error: RuntimeError) -> bool:
    """Whether a device had too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WITHOUT_MEMORY)


def chosen(wanted: Wanted, say: Callable[[str], None] = _quiet, gpu: Gpu | None = None) -> Hardware:
    """The hardware that a study asks for. Raises ConfigError if it insists on a GPU that cannot be used.

    say: is told of a GPU that is there and cannot be used. gpu: the GPU in question, by default torch's.
    """
    if wanted == "cpu":
        return Hardware()
    gpu = gpu or Cuda()
    fault = gpu.fault()
    if fault is None:
        return Hardware(gpu, falls_back=wanted == "auto", say=say)
    if wanted == "cuda":
        raise ConfigError(
            f'Expected a GPU for device = "cuda", got {fault or "none: torch finds no CUDA device"}. Install '
            'a driver and a torch with CUDA, or set device = "auto" or "cpu" under [runtime], or by --device.'
        )
    if fault:
        say(f"There is a GPU, but it cannot be used ({fault}): the run is computed on the CPU.")
    return Hardware()


def computed(model: nn.Module, read: Callable[[], T]) -> T:
    """What `read` gives. It puts its tensors where the model is, and what it does can be done again.

    If the GPU's memory runs out, it is read anew on the CPU, where the model's hardware allows that.
    """
    try:
        return read()
    except RuntimeError as error:
        if (hardware := _PUT.get(model)) is None:
            raise
        hardware.leave(error)
    # behind the handler: the error keeps the failed attempt's tensors alive
    model.to(CPU)
    return read()


# Arrays as tensors, modes and threads ----------------------------------------------------------------


def as_tensor(array: NDArray[Any]) -> Tensor:
    """The array as a tensor that must only be read. It is copied only if it is read-only or strided."""
    # torch shares memory with numpy and warns of arrays that it must not write to
    flags = array.flags
    return torch.from_numpy(array if flags.c_contiguous and flags.writeable else np.array(array, order="C"))


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the model into training or evaluation mode; afterwards every module has its own mode back."""
    before = [(module, module.training) for module in model.modules()]
    # Attributes of modules take long to set, and a model that is only read is in its mode already.
    if any(mode is not training for _, mode in before):
        model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            if module.training is not mode:
                module.training = mode


def single_thread() -> None:
    """Pin torch, in this process, to one thread within and one thread between operations.

    Worker processes of a study call it. Models this small run no faster on several threads. With one thread
    results do not depend on how a machine splits a sum, and workers do not fight over cores.
    """
    torch.set_num_threads(1)
    # torch refuses the second pin once the process has run anything in parallel; then it is left out
    if torch.get_num_interop_threads() != 1:
        with suppress(RuntimeError):
            torch.set_num_interop_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread within operations for a while; afterwards torch has as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
