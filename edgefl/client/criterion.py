"""The loss that training minimises and the metric that evaluation measures: cross-entropy and accuracy, or the user's own."""

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map, tree_map_only

from edgefl.client.metrics import OF_CLASSES
from edgefl.cost.trace import quiet
from edgefl.errors import ConfigError, MetricError
from edgefl.models.factory import factory_of, sources_sha256
from edgefl.models.valueless import reason
from edgefl.records import METRICS, Metric
from edgefl.util.compute import described, uncompiled_from_here
from edgefl.util.networks import title_of
from edgefl.wire.message import MessageFields

Compared = Callable[[Any, Tensor], Tensor]
"""(outputs of a network, targets) → scalar."""


@dataclass(frozen=True)
class Criterion:
    """The loss of a run, a function (outputs, targets) → mean over the batch, and the metric of its models.

    Attributes:
        spec: the name that any process finds the user's function by; empty: cross-entropy.
        sha256: of the function's source.
        target: shape of one sample's float32 target; None: it is a label.
        span: the smallest and the largest value of the training targets.
        whole: whether all of them are whole numbers, such as the class of each pixel.
        output: shape of one sample's output, unless it has one dimension, as evaluation and the graphs of a bundle return it.
        reshapes: whether the loss gets targets (batch,) as (batch, 1), or the reverse. Otherwise it would compare each output with the
            targets of all samples: torch broadcasts the two shapes without an error.
        measure: a name in :data:`edgefl.records.metric.METRICS`, or the name of the user's own metric; empty: that of the loss.
        measure_sha256: of the source of the user's own metric.

    >>> Criterion().metric.name, Criterion.of("torch.nn.functional:l1_loss").metric
    ('accuracy', Metric(name='l1 loss', better='lower', share=False))
    """

    spec: str = ""
    sha256: str = ""
    target: tuple[int, ...] | None = None
    span: tuple[float, float] = (0.0, 1.0)
    whole: bool = False
    output: tuple[int, ...] | None = None
    reshapes: bool = False
    measure: str = ""
    measure_sha256: str = ""

    @classmethod
    def of(cls, spec: str | None, targets: np.ndarray | None = None, measure: str | None = None) -> Self:
        """Return the criterion of a loss and a metric by their names, with training targets (n, …) float32, None for labels.

        The loss is cross-entropy if ``spec`` is None. InputError: there is no such function, or a metric does not say its direction.
        """
        about: dict[str, Any] = {}
        if measure is not None:
            about = {"measure": measure}
            about |= {} if measure in METRICS else {"measure_sha256": sources_sha256(factory_of(measure, "metric"))}
        if spec is not None:
            about |= {"spec": spec, "sha256": sources_sha256(factory_of(spec, "loss"))}
        if targets is not None:
            span, whole = (float(targets.min()), float(targets.max())), bool((targets % 1 == 0).all())
            about |= {"target": targets.shape[1:], "span": span, "whole": whole}
        criterion = cls(**about)
        if criterion.metric.better not in ("higher", "lower"):
            name = getattr(criterion._metric, "__name__", "metric")
            whose = f"metric: {title_of(measure)}" if measure else f"loss: {title_of(str(spec))} has a metric that"
            raise ConfigError(f"{whose} does not say which values are better; set {name}.better to 'higher' or 'lower'")
        return criterion

    def fields(self) -> MessageFields:
        """Return the fields as JSON has them. :meth:`read` makes the criterion from them in another process."""
        return asdict(self)

    @classmethod
    def read(cls, fields: MessageFields) -> Self:
        """Return the criterion of its fields as JSON has them."""
        read: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return cls(**read)

    @cached_property
    def loss(self) -> Compared | None:
        """The user's function; None: cross-entropy."""
        return self._given(self._function)

    @cached_property
    def _function(self) -> Compared | None:
        function = factory_of(self.spec, "loss") if self.spec else None
        uncompiled_from_here()
        return function

    @cached_property
    def _metric(self) -> Compared | None:
        """The user's function; None: a metric of predicted classes."""
        if self.measure:
            return None if self.measure in METRICS else factory_of(self.measure, "metric")
        return getattr(self._function, "metric", self._function)

    def _given(self, function: Compared | None) -> Compared | None:
        return partial(_reshaped, function) if self.reshapes and function is not None else function

    @property
    def metric(self) -> Metric:
        """The run's own metric or ``loss.metric``, with their attributes ``better`` and ``share``, else the loss (lower is better)."""
        if (measure := self._metric) is None:
            return METRICS[self.measure or "accuracy"]
        name = getattr(measure, "__name__", type(measure).__name__).replace("_", " ").strip() or "metric"
        better: Any = "lower" if measure is self._function else getattr(measure, "better", None)
        return Metric(name, better, share=bool(getattr(measure, "share", False)))

    @property
    def _title(self) -> str:
        return f"metric: {title_of(self.measure)}" if self.measure else f"loss: metric {self.metric.name}"

    def targets(self, samples: int) -> Tensor:
        """Return zeros as the targets of a batch: labels (samples,) int64, or (samples, …) float32."""
        if self.target is None:
            return torch.zeros(samples, dtype=torch.int64)
        return torch.zeros(samples, *self.target)

    def drawn(self, samples: int, classes: int, random: torch.Generator) -> Tensor:
        """Return targets as the training data could have them: labels (samples,) int64, or (samples, …) float32 within the span.

        A loss may refuse others, such as a class that there is not.
        """
        if self.target is None:
            return torch.randint(max(classes, 1), (samples,), generator=random)
        low, high = self.span
        if self.whole:
            return torch.randint(int(low), int(high) + 1, (samples, *self.target), generator=random).float()
        return low + (high - low) * torch.rand(samples, *self.target, generator=random)

    def present(self, classes: int) -> Tensor | None:
        """Return that a client has every label, bool (classes,); None if there are no labels."""
        return torch.ones(classes, dtype=torch.bool) if classes and self.target is None else None

    def measured(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """Return the metric of outputs (n, …), or (n, outputs) of a graph, for targets (n, …).

        MetricError: it is no finite number, or outputs are NaN.

        >>> Criterion().measured(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
        0.5
        """
        if (measure := self._given(self._metric)) is None:
            return OF_CLASSES[self.measure or "accuracy"](predicted(outputs), targets)
        _check_outputs(np.isnan(outputs).reshape(len(outputs), -1).any(1), self.metric.name)
        shaped = torch.from_numpy(outputs if self.output is None else outputs.reshape(len(outputs), *self.output))
        try:
            value = _figure(self._title, measure, shaped, torch.tensor(targets))
        except ConfigError as error:  # samples of a client may be others than those that were tried
            raise MetricError(str(error)) from error
        if not math.isfinite(value) or (self.metric.share and not 0 <= value <= 1):
            expected = "a share from 0 to 1" if self.metric.share else "a finite number"
            raise MetricError(f"{self._title} is {value} for {len(targets)} held-out samples, expected {expected}")
        return value

    def tried(self, labels: np.ndarray, classes: int, random: torch.Generator) -> None:
        """Compute the user's metric of random outputs (n, ``classes``) for ``labels`` (n,); ConfigError if it raises or is no number."""
        if (measure := self._metric) is not None:
            _figure(self._title, measure, torch.randn(len(labels), classes, generator=random), torch.tensor(labels))

    def checked(self, network: nn.Module, x: Any, y: Tensor, classes: int) -> Self:
        """Return the criterion with the shape of the outputs of ``network``, for samples ``x`` and ``y``, labels if there are ``classes``.

        ConfigError: the loss or the metric is no scalar, the loss cannot be traced or minimised, or the network does not return one tensor
        in evaluation: (batch, ``classes``), or (batch, …) if there are no classes.
        """
        outputs, title = network.train()(x), f"loss: {title_of(self.spec)}"
        if not self.reshapes and self._crosses(self._function, outputs):
            return replace(self, reshapes=True).checked(network, x, y, classes)
        assert self.loss is not None
        value, single = _scalar(title, self.loss, outputs, y), isinstance(outputs, Tensor) and outputs.dim() == 1
        if not bool(torch.isfinite(value)):
            samples = f"{len(y)} samples and the initial weights"
            raise ConfigError(f"{title} returned {value.item()} for {samples}, expected a finite number")
        if not value.requires_grad:
            raise ConfigError(f"{title} returned a value without a gradient; compute it from the outputs, without detach or item")
        mode = FakeTensorMode()
        traced = [tree_map_only(Tensor, lambda part: mode.from_tensor(part.detach()), values) for values in (outputs, y)]
        with mode, quiet():
            _scalar(title, self.loss, *traced)
        with torch.no_grad():
            outputs = network.eval()(x)
            shape = outputs.shape if isinstance(outputs, Tensor) else ()
            if len(shape) < 2 or shape[0] != len(y) or not outputs.numel() or (classes and shape[1:] != (classes,)):
                wanted = f"one tensor (batch, {f'{classes} classes' if classes else 'outputs, …'})"
                raise ConfigError(f"model: in evaluation it returns {_shapes(outputs)} for {len(y)} samples, expected {wanted}")
            outputs, metric = outputs.squeeze(1) if single else outputs, f"{title}, metric {self.metric.name},"
            if (measure := self._given(self._metric)) is not None:
                _figure(self._title if self.measure else metric, measure, outputs, y)
            if self._crosses(self._metric, outputs):
                raise ConfigError(
                    f"{metric} compares each output with the target of every sample; reshape outputs in it as in the loss"
                )
        return replace(self, output=None if outputs.dim() == 2 else tuple(outputs.shape[1:]))

    def _crosses(self, function: Compared | None, outputs: Any) -> bool:
        """Whether ``function`` compares each of the ``outputs`` with the targets of all samples, if a sample has one number of each.

        It is tried on two outputs between two targets: the differences of the pairs (0, 0) and (1, 1) are not those of all four pairs.
        """
        adapted = self._given(function)
        if function is None or adapted is None or self.target not in ((), (1,)) or not isinstance(outputs, Tensor):
            return False
        low, high = self.span
        made, wanted = (low + (high - low) * torch.tensor(shares) for shares in ((0.25, 0.625), (0.0, 1.0)))
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.filterwarnings("ignore", "Using a target size")  # torch's own losses say so
                value = adapted(made.view(2, *outputs.shape[1:]), wanted.view(2, *self.target))
                paired, crossed = function(made, wanted), function(made.repeat_interleave(2), wanted.repeat(2))
                return bool(torch.isclose(value, crossed) & ~torch.isclose(value, paired))
        except Exception:  # noqa: BLE001 - a user's function may raise anything, also for these shapes
            return False


def predicted(outputs: np.ndarray) -> np.ndarray:
    """Return the class with the largest of the outputs (n, classes), (n,) int64; MetricError if a largest output is NaN or infinite.

    A network may exclude a class by an output of minus infinity.

    >>> predicted(np.array([[0.1, 0.9], [0.8, -np.inf]])).tolist()
    [1, 0]
    """
    _check_outputs(~np.isfinite(outputs.max(1)), "accuracy")
    return np.asarray(outputs.argmax(1))


def _check_outputs(wrong: np.ndarray, metric: str) -> None:
    """Raise :class:`MetricError` if any sample has ``wrong`` outputs."""
    if count := int(wrong.sum()):
        raise MetricError(
            f"{metric}: the network returns NaN or infinity for {count} of {len(wrong)} samples, expected finite outputs; its training has "
            "diverged, so give a smaller lr or server_lr, or a statistic of its normalisation is wrong, such as a negative variance"
        )


def _reshaped(function: Compared, outputs: Any, targets: Tensor) -> Tensor:
    return function(outputs, targets.unsqueeze(1) if targets.dim() == 1 else targets.squeeze(1))


def _scalar(title: str, function: Compared, outputs: Any, targets: Tensor) -> Tensor:
    """Return the scalar that ``function`` returns; ConfigError, which begins with ``title``, if it raises an error or returns none."""
    value = _called(title, function, outputs, targets)
    return _checked(title, value, "a scalar tensor: the mean over the batch, such as value.mean()")


def _called(title: str, function: Compared, outputs: Any, targets: Tensor) -> Any:
    try:
        return function(outputs, targets)
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(
            f"{title} raised an error for outputs {_shapes(outputs)} and targets {_shapes(targets)}: {reason(error)}"
        ) from error


def _checked(title: str, value: Any, expected: str) -> Tensor:
    if not isinstance(value, Tensor) or value.dim():
        raise ConfigError(f"{title} returned {described(value)}, expected {expected}")
    return value


def _figure(title: str, function: Compared, outputs: Tensor, targets: Tensor) -> float:
    """Return the number that a metric returns; ConfigError, which begins with ``title``, if it raises an error or returns none."""
    with torch.no_grad():
        value = _called(title, function, outputs, targets)
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    return float(_checked(title, value, "a number or a scalar tensor, such as value.mean()"))


CROSS_ENTROPY = Criterion()


def _shapes(value: Any) -> str:
    return str(tree_map(lambda part: tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__, value))
