"""The outcome of a client's job: its update and what it stores, or why there is none."""

import math

from edgefl.client import evaluate
from edgefl.client.clipping import clipped
from edgefl.client.job import Job, PreparedJob, Task
from edgefl.client.loop import OverMemory, TrainingResult
from edgefl.client.noised import noised
from edgefl.data.shards import Shards
from edgefl.methods.state import Tensors
from edgefl.records import Outcome
from edgefl.rng import generator
from edgefl.timing.spans import span
from edgefl.util.compute import is_finite
from edgefl.wire.codec import codec_named
from edgefl.wire.payload import encode
from edgefl.wire.values import too_large


def outcome_after_training(task: Task, shards: Shards, prepared: PreparedJob, result: TrainingResult) -> Outcome:
    """Return the outcome of a client that has trained: its update and what it stores, or ``diverged``.

    A client has diverged if its loss or a tensor that it stores is not finite, or a value of its update is too large to be sent.
    """
    job, module = prepared.job, prepared.local.module
    steps, lr = max(1, result.steps), prepared.local.training.lr
    control, memory = task.objective.finish(module, prepared.memory, prepared.arrived, steps, lr)
    sent = _sent(task, prepared, {name: tensor.cpu() for name, tensor in {**job.method.upload(module), **control}.items()})
    stored = {name: tensor.cpu() for name, tensor in {**job.method.keep(module), **memory}.items()}
    loss = result.loss if result.steps else None
    measured: tuple[int | None, int | None] = (None, None)
    if result.steps:
        measured = result.peak_activation_bytes, result.memory_bytes
    unsendable = any(too_large(tensor.numpy()) is not None for tensor in sent.values())
    if unsendable or not (math.isfinite(result.loss) and all(map(is_finite, stored.values()))):
        return Outcome(job.client, "diverged", result.steps, None, *measured)
    with span("encode", client=job.client):
        present = prepared.local.present if prepared.parts.sends_labels and task.privacy is None else None
        labels = None if present is None else tuple(present.nonzero().flatten().tolist())
        payload, clips = _encoded(task, prepared, sent, labels)
        labels = labels if job.masking is None else None  # they are part of the masked vector
        kept = encode(stored) if stored else b""
    score = _score(task, shards, prepared) if job.eval_after_training and prepared.attack is None else None
    return Outcome(job.client, "trained", result.steps, loss, *measured, None, payload, kept, score, labels, 0, clips)


def over_memory(job: Job, over: OverMemory) -> Outcome:
    """Return the outcome of a client with a step that needs more memory than its device has."""
    return Outcome(job.client, "out_of_memory", 1, None, over.peak_activation_bytes, over.held_bytes)


def _sent(task: Task, prepared: PreparedJob, trained: Tensors) -> Tensors:
    """Return the tensors that leave the client: the ``trained`` ones, changed by an attack or by the noise of local privacy."""
    job = prepared.job
    if prepared.attack is not None:
        return prepared.attack.upload(job.round, job.client, prepared.start, trained)
    if task.privacy is None or task.privacy.level != "local":
        return trained
    received = {name: prepared.arrived[name].cpu() for name in prepared.parts.shapes}
    return noised(trained, received, task.privacy, generator(task.seed, job.round, job.client, "privacy"))


def _encoded(task: Task, prepared: PreparedJob, sent: Tensors, labels: tuple[int, ...] | None) -> tuple[bytes, int]:
    """Return the payload of a client's update, and how many of its values were clipped to be masked."""
    job = prepared.job
    if job.masking is not None:
        received = {name: tensor.cpu() for name, tensor in prepared.arrived.items()}
        if job.clip_norm is not None:
            sent, _ = clipped(sent, received, job.clip_norm)
        return job.masking.masked(sent, received, labels, generator(task.seed, job.round, job.client, "masked"))
    rounding = generator(task.seed, job.round, job.client, "codec") if codec_named(task.codec).draws else None
    return encode(sent, task.codec, rounding), 0


def _score(task: Task, shards: Shards, prepared: PreparedJob) -> float:
    """Return the metric of the network that a client has trained, adapted if the method does so, on its own held-out samples.

    Statistics of static BatchNorm layers are those of the client's training samples. The tensors to send must be encoded before.
    """
    job, local = prepared.job, prepared.local
    with span("evaluate", client=job.client):
        module = evaluate.with_statistics(local.module, map(shards.train, [job.client]), local.training.batch_size)
        adapted = job.method.adapt(module, local.x, local.y)
        with evaluate.evaluating(f"round {job.round}, client {job.client}"):
            return evaluate.score(adapted, shards.test(job.client), task.criterion)
