"""The costs of a network before anything is trained: a row per tier and device."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch

from edgefl.client.training import OptimizerName, Training
from edgefl.errors import ConfigError, UnknownNameError
from edgefl.fleet.budget import Budget, budget_of, use
from edgefl.fleet.clock import inference_j, inference_s, round_timing, throttled_s, training_spends, within
from edgefl.fleet.load import load_device, load_fleet
from edgefl.fleet.profile import DeviceProfile, Fleet
from edgefl.fleet.time_model import train_s
from edgefl.methods.base import Method
from edgefl.methods.create import check_tiers, create
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture, Unfilled
from edgefl.models.custom import CustomArchitecture
from edgefl.planning.network import GivenInputs, Network, architecture_of, batch_in
from edgefl.planning.practice import Practice
from edgefl.planning.tier_costs import practice_cost, recomputed_cost, tier_cost
from edgefl.records import Cost, Tier
from edgefl.registry import Options, codecs, methods
from edgefl.report.cost_rows import ProfileRow, TensorBytes
from edgefl.report.results import Results
from edgefl.server.assignment import fastest_round_s
from edgefl.util.compute import one_thread
from edgefl.util.fields import each
from edgefl.util.ratios import check_ratios
from edgefl.wire.payload import header_bytes, tensor_bytes

DEFAULT_BATCH_SIZE = 32
DEFAULT_SAMPLES = 500


@one_thread()
def profile(
    network: Network,
    inputs: GivenInputs = None,
    classes: int | None = None,
    *,
    method: str | None = None,
    method_options: Options | None = None,
    tiers: Sequence[float] | None = None,
    batch_size: int | None = None,
    micro_batch: int | None = None,
    recompute: bool = False,
    optimizer: OptimizerName = "momentum",
    runtime: Literal["torch", "onnx"] = "torch",
    codec: str = "fp32",
    device: str | Sequence[str] | None = None,
    fleet: str | None = None,
    samples: int = DEFAULT_SAMPLES,
    local_epochs: int = 1,
    norm: str | None = None,
    check_macs: bool = False,
) -> Results[ProfileRow]:
    """Return the costs of ``network``: one row per tier, and with devices one per tier and device.

    One training step and one inference are traced with fake tensors: nothing is computed and no large tensor is allocated.
    ``macs_forward`` and ``macs_backward_*`` are per sample, ``macs_compose`` per forward and backward pass, ``macs_train_step`` the whole
    step at ``batch_size``. ``*_inference`` is about the deployed network, which may differ from the trained one.

    Args:
        network: a reference network's name, ``"package.module:factory"``, an ``.onnx`` file, a module, or a factory.
        inputs: a sample's shape, or name → shape, or example tensors (their batch is then the default ``batch_size``).
        classes: number of labels, for reference networks; None for the usual one.
        method: makes the sub-models; None for the network as it is. Methods train ``nn.MultiheadAttention`` as linear layers, which
            takes a few per cent less memory.
        method_options: the method's own options.
        tiers: ratios, largest first; None for the method's own.
        batch_size: samples of a training step and of an inference; 32 by default.
        micro_batch: samples of one forward and backward pass; gradients are accumulated up to ``batch_size``.
        recompute: compute activations again in the backward pass, in the segments that need the least memory.
        optimizer: "momentum", "sgd" or "adam".
        runtime: what trains, for the memory of training. "onnx" exports the training graph of every tier, which takes seconds.
        codec: how updates travel up.
        device: names or files of device profiles.
        fleet: a fleet's name or file: its classes with their budgets.
        samples: local samples of a client, for the seconds and joules of an epoch and a round.
        local_epochs: passes over them in a round.
        norm: normalisation policy, for reference networks.
        check_macs: count the forward pass a second time, over the tier's ONNX graph (``macs_forward_onnx``). This exports the network,
            which takes from a second to a minute.

    Raises:
        EdgeflError: with ``check_macs`` or ``runtime="onnx"``, an operation of the network has no ONNX form.
        InputError: a name is unknown, a tier is outside (0, 1], the network refuses the input or cannot be traced, or the method
            cannot train it with these tiers together.

    Example:
        >>> profile("cnn-digits", (1, 8, 8), 10)[0].macs_forward
        1798144
        >>> from torch import nn
        >>> profile(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 4)), (3, 8, 8))[0].macs_forward
        8928
    """
    count = cost_of(runtime, recompute)
    batch_size = batch_size_of(batch_size, inputs)
    training = training_for(batch_size, micro_batch, optimizer, local_epochs, samples, codec)
    devices = [load_device(name) for name in ([device] if isinstance(device, str) else device or ())]
    chosen_fleet = load_fleet(fleet) if fleet else None
    architecture = architecture_of(network, inputs, classes, norm)
    if method is None and runtime == "torch" and isinstance(architecture, CustomArchitecture):
        architecture = replace(architecture, as_given=True)
    chosen, ratios = method_and_tiers(method, method_options, tiers)
    training = replace(training, clip_gradient=chosen.clip_gradient)
    practice = Practice(chosen, architecture, training)
    costs = {tier: count(practice, tier, codec) for tier in map(Tier, ratios)}
    check_together(chosen, architecture, costs)
    # A deadline may be a multiple of what the fastest class needs for the dense network, as in a run of any method.
    full = tier_cost(create("fedavg"), architecture, Tier(1.0), training, codec) if chosen_fleet else None

    def row(tier: Tier, cost: Cost) -> ProfileRow:
        received, sent = download_shapes(chosen, architecture, tier), upload_shapes(chosen, architecture, tier)
        down, up = tensor_bytes(received), tensor_bytes(sent, codec)
        return ProfileRow.of(
            cost,
            tier=tier.number,
            method=method,
            model=architecture.model,
            batch_size=batch_size,
            micro_batch=cost.micro_batch,
            optimizer=optimizer,
            codec=codec,
            layers=cost.layers,
            macs_forward_onnx=_macs_in_onnx(chosen, architecture, tier) if check_macs else None,
            header_bytes=header_bytes(received),
            upload_header_bytes=header_bytes(sent, codec),
            formula_bytes=sum(down.values()),
            tensors=tuple(TensorBytes(name, of, down.get(name, 0), up.get(name, 0)) for name, of in (received | sent).items()),
        )

    rows = {tier: row(tier, cost) for tier, cost in costs.items()}
    on_devices = _device_rows(rows, costs, full, devices, chosen_fleet, training, samples)
    return Results(of for tier, row in rows.items() for of in on_devices[tier] or [row])


def cost_of(runtime: str, recompute: bool) -> Callable[[Practice, Tier, str], Cost]:
    """Return the function that counts the cost of a tier, trained by ``runtime`` (torch or onnx)."""
    if runtime not in ("torch", "onnx"):
        raise UnknownNameError("runtime", runtime, ("torch", "onnx"))
    if recompute and runtime == "onnx":
        raise ConfigError("recompute needs torch: training graphs save all activations; give runtime torch, or no recompute")
    return _cost_in_onnx if runtime == "onnx" else recomputed_cost if recompute else practice_cost


def batch_size_of(batch_size: int | None, inputs: GivenInputs) -> int:
    """Return the batch size: the given one, else that of example tensors, else 32."""
    if batch_size is not None:
        return batch_size
    return DEFAULT_BATCH_SIZE if (size := batch_in(inputs)) is None else size


def training_for(
    batch_size: int,
    micro_batch: int | None,
    optimizer: OptimizerName,
    local_epochs: int = 1,
    samples: int = DEFAULT_SAMPLES,
    codec: str = "fp32",
) -> Training:
    """Return how a client trains, from checked settings; those that do not change costs have the defaults of a run."""
    numbers = {"batch_size": batch_size, "micro_batch": micro_batch, "local_epochs": local_epochs, "samples": samples}
    for key, value in numbers.items():
        if value is not None and value < 1:
            raise ConfigError(f"{key}: expected at least 1, got {value}")
    codecs.check(codec)
    if optimizer not in (known := get_args(OptimizerName)):
        raise UnknownNameError("optimizer", optimizer, known)
    return Training(local_epochs, batch_size, optimizer=optimizer, micro_batch=micro_batch)


def method_and_tiers(
    method: str | None, method_options: Options | None, tiers: Sequence[float] | None
) -> tuple[Method, tuple[float, ...]]:
    """Return the method and its ratios; without a method, FedAvg at ratio 1."""
    if tiers is not None:
        try:
            check_ratios(tuple(tiers))
        except ValueError as error:
            raise ConfigError(f"tiers: {error}") from None
    if method is None:
        if method_options or (tiers is not None and tuple(tiers) != (1.0,)):
            raise ConfigError("tiers: a network as it is has one size; choose a method, such as --method fedhm")
        return create("fedavg"), (1.0,)
    methods.check(method)
    ratios = tuple(tiers or methods.load(method).default_tiers)
    check_tiers(method, ratios)
    return create(method, method_options, tiers=ratios), ratios


def check_together(method: Method, architecture: Architecture, tiers: Iterable[Tier]) -> None:
    """Raise :class:`ConfigError` if a run of two clients or more could not have these tiers together."""
    method.check(architecture, tuple(tiers), 2)


def _cost_in_onnx(practice: Practice, tier: Tier, codec: str) -> Cost:
    return practice.in_onnx(practice_cost(practice, tier, codec), tier)


def _device_rows(
    rows: Mapping[Tier, ProfileRow],
    costs: Mapping[Tier, Cost],
    full: Cost | None,
    devices: Sequence[DeviceProfile],
    fleet: Fleet | None,
    training: Training,
    samples: int,
) -> dict[Tier, list[ProfileRow]]:
    """Return the row of every tier on every device; the budget of a single device is its memory."""
    budgets = [(device, Budget(device.training_bytes)) for device in devices]
    if fleet is not None and full is not None:
        fastest_s = fastest_round_s(fleet, full, training, samples)
        budgets += [(c.device, budget_of(c, fleet.budget, fastest_s)) for c in fleet.classes]
    on_devices: dict[Tier, list[ProfileRow]] = {tier: [] for tier in costs}
    for device, budget in budgets:
        taken = False
        for tier, cost in costs.items():
            row = _on_device(rows[tier], device, cost, budget, training, samples)
            on_devices[tier].append(replace(row, takes=bool(row.fits) and not taken))
            taken |= bool(row.fits)
    return on_devices


def _on_device(
    row: ProfileRow, device: DeviceProfile, cost: Cost, budget: Budget, training: Training, samples: int
) -> ProfileRow:
    """Return the row of a tier with its columns on a device."""
    timing = round_timing(device, cost, *training.amounts(samples))
    used = use(cost, timing, budget)
    shares = {name: need / have for name, (need, have) in used.items()}
    limiting = "uncounted_ops" if cost.uncounted_ops else max(shares, key=lambda name: shares[name])
    sample_s, (low_s, high_s) = inference_s(device, cost), within(timing, device.clock_error)
    (step_s, step_j), (epoch_s, epoch_j) = (_trained(device, cost, training, seen) for seen in (training.batch_size, samples))
    return replace(
        row,
        device=device.name,
        device_title=device.title,
        samples=samples,
        local_epochs=training.epochs,
        inference_seconds=sample_s,
        inference_joules=inference_j(device, cost),
        inference_by_macs=device.compute.inference_step is None,
        train_step_seconds=step_s,
        train_step_joules=step_j,
        epoch_seconds=epoch_s,
        epoch_joules=epoch_j,
        round_seconds=timing.total_s,
        round_joules=timing.total_j,
        round_seconds_low=low_s,
        round_seconds_high=high_s,
        clock_error=device.clock_error,
        layer_seconds=_layer_seconds(device, cost, training),
        fits=not cost.uncounted_ops and all(share <= 1 for share in shares.values()),
        limiting_budget=limiting,
        budget_share=None if cost.uncounted_ops else shares[limiting],
    )


def _trained(device: DeviceProfile, cost: Cost, training: Training, samples: int) -> tuple[float, float | None]:
    """Return the seconds and joules of training on ``samples`` samples once."""
    seen, passes, updates = replace(training, epochs=1).amounts(samples)
    seconds = throttled_s(device, train_s(device.compute, cost, seen, passes, updates))
    fixed_j, watts = training_spends(device, cost.work_of(seen, passes, updates))
    return seconds, None if device.energy is None else fixed_j + watts * seconds


def _layer_seconds(device: DeviceProfile, cost: Cost, training: Training) -> tuple[float, ...] | None:
    """Return the seconds of every layer in one training step; None if the device has no costs by kind of work."""
    costs, size = device.compute.training_step, training.batch_size
    if costs is None:
        return None
    passes = replace(training, epochs=1).passes(size)
    return tuple(layer.work.of(size, passes, 1).seconds(costs.seconds) for layer in cost.layers)


def _macs_in_onnx(method: Method, architecture: Architecture, tier: Tier) -> int | None:
    """Return the MACs of one sample's forward pass, counted over the exported graph; None if some operator is not counted."""
    from edgefl.onnxgrad.exporter import export  # takes seconds to import
    from edgefl.onnxgrad.macs import macs_per_sample

    with Unfilled():
        network = method.network(architecture, tier).eval()
    return macs_per_sample(export(network, {"x": each(torch.zeros_like, architecture.samples(2))}, ()))
