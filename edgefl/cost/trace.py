"""One training step and one inference of a network, traced on fake tensors, which have shapes and no values."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl.cost.calls import Calls, spelled_out
from edgefl.cost.inference import inference_peak
from edgefl.cost.macs import OpWork, work_of
from edgefl.cost.memory import LivenessMeter, Timeline, Watcher, bytes_of, held_by
from edgefl.cost.operations import INPUT, LOSS, NETWORK, OPTIMIZER, LayerTracker, kinds_of
from edgefl.cost.step_memory import StepMemory, beside, optimizer_tensors, step_memory
from edgefl.cost.uncompiled import uncompiled
from edgefl.records import Batch
from edgefl.records.work import NO_WORK, Work
from edgefl.util.tensors import tensors_in

Loss = Callable[[nn.Module, Batch], Tensor]
RECOMPUTE = "recompute"
"""The profile mark around operations that a backward pass runs because the forward pass has not kept their results."""


@dataclass(frozen=True)
class Subject:
    """The network that is traced, with its objective, optimizer and input.

    Attributes:
        build: makes the network; its weights are never filled in.
        batch: makes a batch of so many samples.
        loss: the client's objective, the method's regularisers included.
        deployed: makes the network that an inference runs; None: the one that is trained.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    infer: Callable[[nn.Module, Batch], Any] = lambda module, batch: module(batch.x)
    deployed: Callable[[], nn.Module] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One dispatched operation that works: its layer, its phase, its MACs and values, its work by kind, and how many values it returns."""

    name: str
    layer: str
    phase: str
    work: OpWork
    kinds: Work
    outputs: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A module of the network and the parameters that it has itself; one that several modules share belongs to the first."""

    name: str
    kind: str
    params: int
    parameter_bytes: int


@dataclass(frozen=True)
class StepTrace:
    """The operations of one forward and backward pass and of the update, and the network's layers, weights or not."""

    operations: tuple[Operation, ...]
    memory: StepMemory
    timeline: Timeline
    layers: tuple[Layer, ...]
    buffer_bytes: int
    uncounted_ops: frozenset[str]


@dataclass(frozen=True)
class InferenceTrace:
    """The work of an inference of a batch, and its memory besides the weights: bytes at its peak, and the layer that runs then."""

    peak_bytes: int
    layer: str
    work: Work
    uncounted_ops: frozenset[str]

    @property
    def macs(self) -> int:
        """MACs of the whole batch."""
        return self.work.macs


_MARK = torch.ops.profiler._record_function_enter_new.default
_UNMARK = torch.ops.profiler._record_function_exit._RecordFunction


class _OtherOperationError(Exception):
    """The traced operation is not the expected one."""


class _Recorder:
    """Notes the work of every operation; with ``expected`` names, raises at the first operation of another name."""

    def __init__(self, tracker: LayerTracker, expected: list[str] | None = None) -> None:
        self.expected = expected
        self.phase = "forward"
        self.recording, self.again = True, False
        self.operations: list[Operation] = []
        self.uncounted: set[str] = set()
        self.tracker = tracker

    def __call__(self, operation: Any, args: tuple[Any, ...], out: Any) -> None:
        if operation is _MARK:
            self.again = args[0] == RECOMPUTE
        elif operation is _UNMARK:
            self.again = False
        work = work_of(operation, args, out)
        if work is None:
            self.uncounted.add(str(operation.overloadpacket))
        elif self.recording:
            # A loss may itself hold gradients, of which it is a function.
            inner = self.phase == "forward" and torch._C._current_autograd_node() is not None
            phase = RECOMPUTE if self.again else "backward" if inner else self.phase
            kinds = kinds_of(operation, args, out, work, phase)
            if kinds.operations:
                values = sum(tensor.numel() for tensor in tensors_in(out))
                name, place = str(operation.overloadpacket), len(self.operations)
                if self.expected is not None and [name] != self.expected[place : place + 1]:
                    raise _OtherOperationError(name)
                self.operations.append(Operation(name, self.tracker.current(), phase, work, kinds, values))


class Tracer:
    """A network that is built once under fake tensors. Any number of its steps and inferences can be traced.

    Tracing changes nothing that another trace could see: fake tensors have shapes and no values.

    Args:
        subject: what is traced.
        accumulates: whether a step has several passes. Each weighs its loss by its share of the samples.
    """

    def __init__(self, subject: Subject, accumulates: bool = False) -> None:
        self._subject = subject
        self._accumulates = accumulates
        with uncompiled():
            self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._fake():
            self._network = subject.build()

    @contextlib.contextmanager
    def _fake(self) -> Iterator[None]:
        """Make every tensor of a block fake, without torch's compiler."""
        with uncompiled(), self._mode, quiet():
            yield

    @cached_property
    def deployed(self) -> nn.Module:
        """The network of an inference: the trained one, unless there is another."""
        if self._subject.deployed is None:
            return self._network
        with self._fake():
            return self._subject.deployed()

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of one sample's input."""
        with self._fake():
            return bytes_of(tensors_in(self._subject.batch(1).x))

    def step(self, batch_size: int, passes: int = 1) -> StepTrace:
        """Run ``passes`` forward and backward passes of ``batch_size`` samples and one update.

        The operations are those of one pass and the update; more than one pass accumulates gradients, which its memory shows.
        """
        module = self._network.train()
        with self._fake():
            module.zero_grad()
            optimizer = self._subject.optimizer(module)
            tracker = LayerTracker(module)
            recorder = _Recorder(tracker)
            with tracker, LivenessMeter(held_by(module), recorder, tracker.current) as meter:
                for done in range(passes):
                    recorder.recording = done == 0
                    self._pass(module, batch_size, recorder, meter.mark)
                recorder.recording, recorder.phase, tracker.outside = True, "update", OPTIMIZER
                optimizer.step()
            memory = step_memory(meter, module, optimizer)
            state = optimizer_tensors(optimizer)
            timeline = meter.timeline(meter.numbers(state))
            module.zero_grad()
        buffer_bytes = bytes_of(beside(module.buffers(), state))
        operations = tuple(recorder.operations)
        return StepTrace(operations, memory, timeline, _layers(module), buffer_bytes, frozenset(recorder.uncounted))

    def operations(self, batch_size: int) -> list[Operation]:
        """Return the operations of one forward and backward pass, without the memory that they take."""
        with self._fake():
            return self._watched(self._network, batch_size)

    def quick_operations(self, batch_size: int, expected: list[str]) -> list[Operation]:
        """Return the same from tensors that have no device, in a third of the time.

        Torch may choose other operations there, and many more for an LSTM. The trace ends without a result at the first operation with a
        name that is not ``expected``.
        """
        try:
            with torch.device("meta"):
                return self._watched(self._subject.build(), batch_size, expected)
        except Exception:  # noqa: BLE001 - a network that needs a device may raise anything
            return []

    def _watched(self, network: nn.Module, batch_size: int, expected: list[str] | None = None) -> list[Operation]:
        tracker = LayerTracker(network.train())
        recorder = _Recorder(tracker, expected)
        with quiet(), tracker, Watcher(recorder):
            self._pass(network, batch_size, recorder, lambda: None)
        network.zero_grad()
        return recorder.operations

    def _pass(self, network: nn.Module, batch_size: int, recorder: _Recorder, between: Callable[[], None]) -> None:
        """Run a forward pass, ``between`` and a backward pass."""
        recorder.phase, recorder.tracker.outside = "forward", INPUT
        batch = self._subject.batch(batch_size)
        recorder.tracker.outside = LOSS
        value = self._subject.loss(network, batch)
        del batch
        between()
        recorder.phase = "backward"
        (value * 0.5 if self._accumulates else value).backward()

    def inference(self, batch_size: int) -> InferenceTrace:
        """Return the peak bytes of activations of an inference, its input and output included, its MACs, and operations in no table."""
        module = self.deployed.eval()
        tracker = LayerTracker(module)
        calls = Calls(tracker.current, batch_size)
        done: list[Work] = []
        uncounted: set[str] = set()

        def observe(operation: Any, args: tuple[Any, ...], out: Any) -> None:
            if (work := work_of(operation, args, out)) is None:
                uncounted.add(str(operation.overloadpacket))
            else:
                done.append(kinds_of(operation, args, out, work, "forward"))
            calls.see(operation, args, out)

        with self._fake(), torch.no_grad(), spelled_out(), tracker:
            batch = self._subject.batch(batch_size)
            inputs = [calls.number(tensor, constant=False) for tensor in tensors_in(batch.x)]
            with calls, Watcher(observe):
                results = {calls.number(tensor) for tensor in tensors_in(self._subject.infer(module, batch))}
        peak, layer = inference_peak(calls, inputs, results)
        return InferenceTrace(peak, layer, sum(done, NO_WORK), frozenset(uncounted))


def _layers(network: nn.Module) -> tuple[Layer, ...]:
    seen: set[nn.Parameter] = set()
    layers = []
    for name, module in network.named_modules():
        parameters = [p for p in module.parameters(recurse=False) if p not in seen]
        seen.update(parameters)
        layers.append(Layer(name or NETWORK, type(module).__name__, sum(p.numel() for p in parameters), bytes_of(parameters)))
    return tuple(layers)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from writing to the terminal what tells a user nothing.

    That is a traceback for shapes that do not fit, which raise as well, and a warning for copies of fake layers, as in
    ``nn.TransformerEncoder``.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            yield
    finally:
        log.disabled = before
