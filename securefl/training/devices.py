"""The device of model computations: CPU or GPU, with its precision, modes and threads.

Keys, noise and integer sums stay on the CPU. A function that takes a model moves its tensors to the device of
the model's parameters, and returns arrays. `Hardware` is a run's choice of device. It changes at most once,
from the GPU to the CPU.

Context managers set the mode of all layers, the number of threads and the precision of products for a time.
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
from torch.nn.modules.batchnorm import _NormBase

from securefl.core.errors import ConfigError, SecureFLError

Wanted = Literal["auto", "cpu", "cuda"]
"""The device that a study names. "auto" is a GPU if one can be used, and the CPU otherwise."""
CPU: Final = torch.device("cpu")
T = TypeVar("T")


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's parameters. The CPU for a model without any."""
    first = next(model.parameters(), None)
    return CPU if first is None else first.device


@contextmanager
def full_precision(device: torch.device, *, cudnn: bool = True) -> Iterator[None]:
    """A context with full float32 products by deterministic kernels. On a CPU nothing changes.

    cudnn: whether cuDNN may compute convolutions. Without cuDNN each record's convolution is computed
    separately.
    """
    if device.type == "cpu":
        yield
        return
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    # TF32, torch's default in convolutions, keeps 10 bits of a factor. Results would differ strongly from a
    # CPU's, and a gradient would not be that of the model whose noise is accounted.
    with torch.backends.cudnn.flags(enabled=cudnn, benchmark=False, deterministic=True, allow_tf32=False):
        products.allow_tf32 = False
        try:
            yield
        finally:
            products.allow_tf32 = before


def records_apart(device: torch.device) -> AbstractContextManager[None]:
    """`full_precision` for passes in which no record may change another record's bits (see `chunks`)."""
    # cuDNN chooses its algorithm by the free memory, which depends on the number of records. So one record
    # more could change the bits of all others.
    return full_precision(device, cudnn=False)


# A GPU, and the choice of it -----------------------------------------------------------------------------


class Gpu(Protocol):
    """The methods of a GPU that this package calls."""

    @property
    def device(self) -> torch.device: ...

    def fault(self) -> str | None:
        """The reason why the GPU cannot be used. None if it can be, "" if there is no GPU."""
        ...

    def name(self) -> str: ...

    def facts(self) -> tuple[str, ...]:
        """The facts that decide its kernels: device name, compute capability, versions of the libraries."""
        ...

    def emptied(self) -> None:
        """Release unused memory."""
        ...


class Cuda:
    """The GPU that torch calls "cuda"."""

    device: Final = torch.device("cuda")

    def fault(self) -> str | None:
        # With an old driver torch warns. A user that did not ask for a GPU should not see that.
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
    """Discard a line."""


class Hardware:
    """The device of a run's models. All problems of the run share the object.

    falls_back: whether the run continues on the CPU if the GPU's memory runs out. say: called with a line
    about that, once. left: called before the first computation on the CPU then.
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
        """The device as a text for people, such as "cpu"."""
        return "cpu" if self.gpu is None else f"{self.gpu.device.type}: {self.gpu.name()}"

    def put(self, model: nn.Module) -> nn.Module:
        """Move the model to this device. `computed` then moves it to the CPU if this hardware falls back."""
        _PUT[model] = self
        try:
            return model.to(self.device)
        except RuntimeError as error:
            self.leave(error)
        return model.to(CPU)

    def leave(self, error: RuntimeError) -> None:
        """Switch to the CPU for the rest of the run, if `error` shows that the GPU's memory ran out.

        Raises SecureFLError if the run must stay on the GPU, and `error` itself if it has another cause.
        """
        if self.gpu is None or not of_memory(error):
            raise error
        told = f"{self.words} has too little memory for this"
        if not self.falls_back:
            raise SecureFLError(
                f'Expected enough memory under device = "cuda", but {told} ({_first_line(error)}). Run the '
                "same command with --device auto or cpu if it has that option, or start a new run with "
                "smaller cohorts or batches."
            ) from error
        gpu = self.gpu
        self.gpu = None
        gpu.emptied()
        self.left()
        self._say(f"{told}: the rest of the run is computed on the CPU.")

    def require(self, keeps_apart: Callable[..., bool]) -> None:
        """Switch to the CPU before anything is computed, if the GPU does not keep records apart.

        keeps_apart: gives the verdict (see `audits.keeps_apart`). Raises ConfigError if the run must stay on
        the GPU.
        """
        try:
            fits = self.gpu is None or self._trusted or keeps_apart(self.gpu, say=self._say)
        except RuntimeError as error:  # no verdict is stored for a test that did not end
            self.leave(error)
            return
        if fits:
            self._trusted = True
            return
        told = f"{self.words} does not keep records apart, so no record-level epsilon holds on it"
        if not self.falls_back:
            raise ConfigError(
                f'Expected a GPU under device = "cuda" that passes the kink test, but {told} (see: securefl '
                'audit --device cuda). Set device = "auto" or "cpu" under [runtime], or by --device.'
            )
        self.gpu = None
        self._say(f"{told}: the run is computed on the CPU.")


_PUT: Final[WeakKeyDictionary[nn.Module, Hardware]] = WeakKeyDictionary()
_WITHOUT_MEMORY: Final = ("out of memory", "ALLOC_FAILED")
"""Words in errors of CUDA's libraries about memory. These errors have no class of their own."""


def of_memory(error: RuntimeError) -> bool:
    """Whether the error says that a device has too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WITHOUT_MEMORY)


def chosen(wanted: Wanted, say: Callable[[str], None] = _quiet, gpu: Gpu | None = None) -> Hardware:
    """The hardware that a study names. Raises ConfigError if it names "cuda" and no GPU can be used.

    say: called with a line if there is a GPU that cannot be used. gpu: the GPU, by default torch's.
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
    """Call `read` and return its result. If the GPU's memory runs out, move the model to the CPU and repeat.

    read: moves its tensors to the model's device. A second call must give the same result.

    Raises SecureFLError if the memory runs out and the model's hardware does not fall back.
    """
    try:
        return read()
    except RuntimeError as error:
        if (hardware := _PUT.get(model)) is None:
            raise
        hardware.leave(error)
    # Outside of the handler, since the error keeps the tensors of the failed attempt alive.
    model.to(CPU)
    return read()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A context in which layers on this device draw from the seed. It leaves all generators as they were."""
    on_gpu = device.type != "cpu"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        # `torch.manual_seed` would seed all devices, of which `fork_rng` restores these alone.
        torch.default_generator.manual_seed(seed)
        if on_gpu:  # layers on a GPU draw from its own generator
            torch.cuda.manual_seed(seed)
        yield


# Arrays as tensors, modes and threads ----------------------------------------------------------------


def as_tensor(array: NDArray[Any]) -> Tensor:
    """The array as a tensor that the caller must not write to. A read-only or strided array is copied."""
    # torch shares memory with numpy, and warns if the array is read-only.
    flags = array.flags
    return torch.from_numpy(array if flags.c_contiguous and flags.writeable else np.array(array, order="C"))


def norms(model: nn.Module, *, frozen: bool) -> dict[str, nn.Module]:
    """The norms with running statistics by name: those that training moves, or the frozen ones.

    A norm is frozen with its parameters. If it has none, it is frozen with the last ones before it in the
    model's order, or with the model's first ones. A frozen body is then the same after training as before.
    """
    first = next(model.parameters(), None)
    found, fixed = dict[str, nn.Module](), first is not None and not first.requires_grad
    for name, layer in model.named_modules():
        if own := [entry.requires_grad for entry in layer.parameters(recurse=False)]:
            fixed = not any(own)
        if isinstance(layer, _NormBase) and layer.running_mean is not None and fixed is frozen:
            found[name] = layer
    return found


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """A context with the model in training or evaluation mode. Then every module gets its own mode back.

    Frozen norms (`norms`) are in evaluation mode in both.
    """
    before = [(module, module.training) for module in model.modules()]
    # Setting attributes of modules is slow, and a model that is only read is in its mode already.
    if any(mode is not training for _, mode in before):
        model.train(training)
    if training:
        for norm in norms(model, frozen=True).values():
            norm.training = False
    try:
        yield
    finally:
        for module, mode in before:
            if module.training is not mode:
                module.training = mode


def single_thread() -> None:
    """Limit torch, in this process, to one thread within and one thread between operations.

    >>> import torch
    >>> from securefl.training import single_thread
    >>> before = torch.get_num_threads()
    >>> single_thread()
    >>> torch.get_num_threads()
    1
    >>> torch.set_num_threads(before)

    Worker processes of a study call it. The packaged models do not run faster on several threads. With one
    thread, results do not depend on how a machine divides a sum, and workers do not compete for cores.

    Raises nothing.
    """
    torch.set_num_threads(1)
    # torch refuses the second limit if the process has already run operations in parallel. It is skipped
    # then.
    if torch.get_num_interop_threads() != 1:
        with suppress(RuntimeError):
            torch.set_num_interop_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context with one thread within operations. Then torch gets its former number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
