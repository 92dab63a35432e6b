"""Keys of training on a client."""

from typing import Annotated, Literal

from edgefl.config.field import Count, Keys, Positive, key, known
from edgefl.registry import objectives

CLIENT = "Training on a client"
"""Heading of these keys in the command line's help."""


class TrainingKeys(Keys):
    """Keys of training on a client."""

    local_epochs: Count | None = key(None, CLIENT, "Epochs that a client trains each round. [digits: 5, else 1]")
    batch_size: Count = key(32, CLIENT, "Samples per training step.")
    micro_batch: Count | None = key(None, CLIENT, "Samples per pass; gradients add up over the batch. [the batch]")
    runtime: Literal["torch", "onnx"] = key("torch", CLIENT, "Library that trains; onnx: onnxruntime, on exported graphs.")
    optimizer: Literal["momentum", "sgd", "adam"] = key("momentum", CLIENT, "Optimizer of the client.")
    lr: Positive = key(0.05, CLIENT, "Learning rate of the client.")
    lr_schedule: Literal["constant", "cosine", "step"] = key(
        "constant", CLIENT, "Change of --lr over rounds; cosine ends at 0; step: a tenth in the second half."
    )
    momentum: float = key(0.9, CLIENT, "Momentum coefficient of the optimizer.", ge=0, lt=1)
    augment: Literal["none", "flip"] = key(
        "none", CLIENT, "Change of training samples; flip: images are mirrored left-right with chance 1/2, anew in every epoch."
    )
    weight_decay: float = key(1e-4, CLIENT, "L2 coefficient, added to the gradients.", ge=0)
    objective: Annotated[str, known(objectives)] = key(
        "none", CLIENT, "Correction of client drift: FedProx, FedDyn or SCAFFOLD.", names=objectives
    )
    objective_strength: Positive = key(0.1, CLIENT, "Weight of the objective: μ of prox, α of dyn.")
