"""The outcome of a client's job: its update and what it stores, or why there is none."""

import math
from dataclasses import replace

from edgefl.client import evaluate
from edgefl.client.job import Job, PreparedJob, Task
from edgefl.client.leaving import through, unsendable
from edgefl.client.loop import OverMemory, TrainingResult
from edgefl.client.stage import Leaving
from edgefl.data.shards import Shards
from edgefl.methods.personal import adapted, kept
from edgefl.methods.state import Tensors
from edgefl.records import Outcome
from edgefl.timing.spans import span
from edgefl.util.compute import is_finite
from edgefl.wire.payload import encode


def outcome_after_training(task: Task, shards: Shards, prepared: PreparedJob, result: TrainingResult) -> Outcome:
    """Return the outcome of a client that has trained: its update and what it stores, or ``diverged``.

    A client has diverged if its loss or a tensor that it stores is not finite, or a value of its update is too large to be sent.
    """
    job, module = prepared.job, prepared.local.module
    steps, lr = max(1, result.steps), prepared.local.training.lr
    control, memory = task.objective.finish(module, prepared.memory, prepared.arrived, steps, lr)
    sent = _sent(prepared, {name: tensor.cpu() for name, tensor in {**job.method.upload(module), **control}.items()})
    stored = {name: tensor.cpu() for name, tensor in {**kept(job.method, module), **memory}.items()}
    labels = prepared.local.present if prepared.parts.sends_labels else None
    listed = None if labels is None else tuple(labels.nonzero().flatten().tolist())
    *stages, encoder = task.stages
    left, of_stages = through(stages, Leaving(sent, prepared.received, listed), task.seed, prepared)
    loss = result.loss if result.steps else None
    peaks = (result.peak_activation_bytes, result.memory_bytes)
    measured: tuple[int | None, int | None] = peaks if result.steps else (None, None)
    if unsendable(left) or not (math.isfinite(result.loss) and all(map(is_finite, {**stored, **of_stages}.values()))):
        return Outcome(job.client, "diverged", result.steps, None, *measured)
    with span("encode", client=job.client):
        left, _ = through([encoder], left, task.seed, prepared)
        written = encode({**stored, **of_stages}) if stored or of_stages else b""
    score = _score(task, shards, prepared) if job.eval_after_training and prepared.conduct is None else None
    done = Outcome(job.client, "trained", result.steps, loss, *measured, payload=left.payload, kept=written)
    return replace(done, accuracy_after_training=score, labels=left.labels, figures=left.figures)


def over_memory(job: Job, over: OverMemory) -> Outcome:
    """Return the outcome of a client with a step that needs more memory than its device has."""
    return Outcome(job.client, "out_of_memory", 1, None, over.peak_activation_bytes, over.held_bytes)


def _sent(prepared: PreparedJob, trained: Tensors) -> Tensors:
    """Return the tensors that a client would send: the ``trained`` ones, or what its conduct makes of them."""
    if prepared.conduct is None:
        return trained
    return prepared.conduct.sent(prepared.job.round, prepared.job.client, prepared.start, trained)


def _score(task: Task, shards: Shards, prepared: PreparedJob) -> float:
    """Return the metric of the network that a client has trained, adapted if the method does so, on its own held-out samples.

    Statistics of static BatchNorm layers are those of the client's training samples. The tensors to send must be encoded before.
    """
    job, local = prepared.job, prepared.local
    with span("evaluate", client=job.client):
        module = evaluate.with_statistics(local.module, map(shards.train, [job.client]), local.training.batch_size)
        network = adapted(job.method, module, local.x, local.y)
        with evaluate.evaluating(f"round {job.round}, client {job.client}"):
            return evaluate.score(network, shards.test(job.client), task.criterion)
