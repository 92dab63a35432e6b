"""Local training as one would write it by hand: a module at a time, on flat buffers, or many clients as one grouped network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from speed.work import BATCH_SIZE, LR, MOMENTUM

Client = tuple[Tensor, Tensor]
"""A client's samples (n, …) and labels (n,)."""


def sequential_network(model: str, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return the network ``model`` of edgefl, without normalisation, as a chain of layers.

    >>> sum(p.numel() for p in sequential_network("cnn-5x5", (1, 28, 28), 10).parameters())
    582026
    """
    channels, height, width = input_shape
    body: list[nn.Module]
    if model == "cnn-tiny":
        body = [nn.Conv2d(channels, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*body, nn.Linear(32 * -(-height // 4) * -(-width // 4), classes))
    if model == "cnn-5x5":
        body = [nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
        features = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, classes))
    if model == "cnn-digits":
        body = [nn.Conv2d(channels, 32, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1, bias=False)]
        body += [nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*body, nn.Linear(64 * (height // 2) * (width // 2), classes))
    raise ValueError(f"no chain of layers for {model!r}")


class Loop(Protocol):
    """Trains clients one after the other, or together."""

    def weights(self) -> list[Tensor]:
        """Return copies of the network's weights, in the shapes in which the loop keeps them."""
        ...

    def put(self, weights: Sequence[Tensor]) -> None:
        """Copy weights into the network."""
        ...

    def train(self, clients: Sequence[Client], weights: Sequence[Tensor], sums: Sequence[Tensor]) -> int:
        """Train each client from ``weights``; write samples × weights, summed over clients, to ``sums``; return the samples."""
        ...


class Plain:
    """One network, ``torch.optim.SGD``, batches gathered by shuffled numbers."""

    def __init__(self, network: nn.Sequential) -> None:
        self._network, self._parameters = network, list(network.parameters())

    def weights(self) -> list[Tensor]:
        """Return a tensor for each parameter."""
        return [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def put(self, weights: Sequence[Tensor]) -> None:
        """Copy weights into the network."""
        for parameter, weight in zip(self._parameters, weights, strict=True):
            parameter.copy_(weight)

    def train(self, clients: Sequence[Client], weights: Sequence[Tensor], sums: Sequence[Tensor]) -> int:
        """Train each client in turn."""
        for part in sums:
            part.zero_()
        for x, y in clients:
            self.put(weights)
            optimizer = torch.optim.SGD(self._parameters, LR, MOMENTUM)
            for own in torch.randperm(len(x)).split(BATCH_SIZE):
                optimizer.zero_grad()
                F.cross_entropy(self._network(x[own]), y[own]).backward()
                optimizer.step()
            for part, parameter in zip(sums, self._parameters, strict=True):
                part.add_(parameter.detach(), alpha=len(x))
        return sum(len(x) for x, _ in clients)


class Flat:
    """One network whose weights and gradients are views of two buffers: a step of SGD is three operations, a reset one."""

    def __init__(self, network: nn.Sequential) -> None:
        parameters = list(network.parameters())
        self._network = network
        self._weights = torch.cat([p.detach().flatten() for p in parameters])
        self._gradients, self._velocity = torch.zeros_like(self._weights), torch.zeros_like(self._weights)
        at = 0
        for parameter in parameters:
            place = slice(at, at + parameter.numel())
            parameter.data = self._weights[place].view_as(parameter)
            parameter.grad = self._gradients[place].view_as(parameter)
            at = place.stop

    def weights(self) -> list[Tensor]:
        """Return one tensor of all weights."""
        return [self._weights.clone()]

    def put(self, weights: Sequence[Tensor]) -> None:
        """Copy weights into the network."""
        self._weights.copy_(weights[0])

    def train(self, clients: Sequence[Client], weights: Sequence[Tensor], sums: Sequence[Tensor]) -> int:
        """Train each client in turn, its samples shuffled once and cut."""
        sums[0].zero_()
        for x, y in clients:
            self.put(weights)
            self._velocity.zero_()
            order = torch.randperm(len(x))
            for inputs, labels in zip(x[order].split(BATCH_SIZE), y[order].split(BATCH_SIZE), strict=True):
                self._gradients.zero_()
                F.cross_entropy(self._network(inputs), labels).backward()
                self._velocity.mul_(MOMENTUM).add_(self._gradients)
                self._weights.add_(self._velocity, alpha=-LR)
            sums[0].add_(self._weights, alpha=len(x))
        return sum(len(x) for x, _ in clients)


class Grouped(Plain):
    """Up to ten clients with equally many samples at once: client k is group k of every convolution, matrix k of every product."""

    at_once = 10

    def train(self, clients: Sequence[Client], weights: Sequence[Tensor], sums: Sequence[Tensor]) -> int:
        """Train clients some at a time."""
        for part in sums:
            part.zero_()
        for first in range(0, len(clients), self.at_once):
            self._train_together(clients[first : first + self.at_once], weights, sums)
        return sum(len(x) for x, _ in clients)

    def _train_together(self, clients: Sequence[Client], weights: Sequence[Tensor], sums: Sequence[Tensor]) -> None:
        own = [w.expand(len(clients), *w.shape).clone().requires_grad_() for w in weights]
        velocity = [torch.zeros_like(w) for w in own]
        orders = [torch.randperm(len(x)) for x, _ in clients]
        x, y = (torch.stack([client[i][order] for client, order in zip(clients, orders, strict=True)]) for i in (0, 1))
        for inputs, labels in zip(x.split(BATCH_SIZE, 1), y.split(BATCH_SIZE, 1), strict=True):
            logits = self._forward(own, inputs).flatten(0, 1)
            loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / labels.shape[1]
            gradients = torch.autograd.grad(loss, own)
            with torch.no_grad():
                for weight, speed, gradient in zip(own, velocity, gradients, strict=True):
                    weight.sub_(speed.mul_(MOMENTUM).add_(gradient), alpha=LR)
        for part, weight in zip(sums, own, strict=True):
            part.add_(weight.detach().sum(0), alpha=x.shape[1])

    def _forward(self, own: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return logits (clients, batch, classes) of ``x`` (clients, batch, channels, h, w)."""
        clients, batch = x.shape[:2]
        x = x.transpose(0, 1).flatten(1, 2)
        weights = iter(own)
        for layer in self._network:
            if isinstance(layer, nn.Conv2d):
                kernels = next(weights).flatten(0, 1)
                bias = next(weights).flatten() if layer.bias is not None else None
                x = F.conv2d(x, kernels, bias, layer.stride, layer.padding, groups=clients)
            elif isinstance(layer, nn.Flatten):
                x = x.reshape(batch, clients, -1).transpose(0, 1)
            elif isinstance(layer, nn.Linear):
                matrix = next(weights).transpose(1, 2)
                x = torch.baddbmm(next(weights).unsqueeze(1), x, matrix)
            else:
                x = layer(x)
        return x


LOOPS: Mapping[str, type[Plain] | type[Flat]] = {
    "sequential": Plain, "processes": Plain, "flat": Flat, "grouped": Grouped,
}  # fmt: skip
"""What trains in each kind of floor; all but ``sequential`` do in two processes."""
