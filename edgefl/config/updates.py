"""Keys of updates: how clients train them, how the server steps, and what it believes of them."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from edgefl.config.field import Count, Keys, Positive, check_name, key, known, known_call
from edgefl.config.rates import checked_rule, named_rules
from edgefl.errors import InputError
from edgefl.registry import codecs, defences, objectives, server_optimizers, stages
from edgefl.util.networks import is_own, spec_of
from edgefl.util.spec import called

CLIENT = "Training on a client"
SERVER = "Server and codec"
TRUST = "Trust in updates"
"""Headings of these keys in the command line's help."""


def _known_optimizer(spec: str) -> str:
    try:
        name, options = called(spec)
    except ValueError:
        raise ValueError(f"expected NAME or NAME(option=value, …), such as adam(start=0), got {spec!r}") from None
    check_name(server_optimizers, name)
    try:
        if options:
            server_optimizers.load(name).of(options)
    except InputError as error:
        raise ValueError(f"{name}: {error}") from None
    return spec


def _stages(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        name = known_call(stages, text, "top-k(share=0.1)")
        if stages.plugin(name) is None:
            raise ValueError(f"{name} follows from other keys, such as codec and clip_norm; give stages of plug-ins")
    return texts


SCREENING = (
    *("sample_cap", "clip_norm", "clip_start", "clip_quantile", "clip_rate"),
    *("defence", "defence_strength", "outliers"),
)
"""The keys of the server's screening, which a round with real devices may change."""


def _rule(value: Any) -> Any:
    return checked_rule(spec_of(value) if callable(value) else value)


def _named_rule(text: str) -> str:
    if is_own(text):
        raise ValueError(f"expected a rule that has a name, such as cosine, got {text!r}")
    named_rules(text)
    return text


def _none_if_off(value: Any) -> Any:
    return None if value == "off" else value


class TrainingKeys(Keys):
    """Keys of training on a client, of the server's step, and of the encoding of updates."""

    local_epochs: Count | None = key(None, CLIENT, "Epochs that a client trains each round. [digits: 5, else 1]")
    batch_size: Count = key(32, CLIENT, "Samples per training step.")
    micro_batch: Count | None = key(None, CLIENT, "Samples per pass; gradients add up over the batch. [the batch]")
    runtime: Literal["torch", "onnx"] = key("torch", CLIENT, "Library that trains; onnx: onnxruntime, on exported graphs.")
    optimizer: Literal["momentum", "sgd", "adam"] = key("momentum", CLIENT, "Optimizer of the client.")
    lr: Positive = key(0.05, CLIENT, "Learning rate of the client.")
    lr_schedule: Annotated[str, BeforeValidator(_rule)] = key(
        "constant",
        CLIENT,
        "Change of --lr over rounds: constant; cosine, which ends at 0; step, a tenth in the second half; exponential(fall=0.001), by that "
        "share each round; warmup(rounds=5), which rises to --lr; several joined by +; or your own, as package.module:function or "
        "file.py:function: (round, rounds) to a share of --lr.",
        "RULE|FUNCTION",
    )
    momentum: float = key(0.9, CLIENT, "Momentum coefficient of the optimizer.", ge=0, lt=1)
    augment: Literal["none", "flip"] = key(
        "none", CLIENT, "Change of training samples; flip: images are mirrored left-right with chance 1/2, anew in every epoch."
    )
    weight_decay: float = key(1e-4, CLIENT, "L2 coefficient, added to the gradients.", ge=0)
    clip_gradient: Positive | Literal["none"] | None = key(
        None, CLIENT, "Largest norm of a step's gradient; longer ones are scaled down. [heterofl: 1, else none]", "X|none"
    )
    objective: Annotated[str, known(objectives)] = key(
        "none", CLIENT, "Correction of client drift: FedProx, FedDyn or SCAFFOLD.", names=objectives
    )
    objective_strength: Positive = key(0.1, CLIENT, "Weight of the objective: μ of prox, α of dyn.")
    server_optimizer: Annotated[str, AfterValidator(_known_optimizer)] = key(
        "avg",
        SERVER,
        "How the server steps; avg takes the average as it is. Options: adam(start=0).",
        names=server_optimizers,
    )
    server_lr: Positive | None = key(None, SERVER, "Learning rate of the server. [1; adam and yogi: 0.01]")
    server_lr_schedule: Annotated[str, AfterValidator(_named_rule)] = key(
        "constant", SERVER, "Change of --server-lr over rounds, by the rules of --lr-schedule that have a name.", "RULE"
    )
    codec: Annotated[str, known(codecs)] = key("fp32", SERVER, "Encoding of the updates that clients send.", names=codecs)
    stages: Annotated[tuple[str, ...], AfterValidator(_stages)] = key(
        (), "", "Stages of plug-ins that updates pass before they are encoded, such as top-k(share=0.1).", "NAME(option=X)"
    )


class TrustKeys(Keys):
    """Keys of what the server believes of updates."""

    sample_cap: Count | Literal["auto", "off"] = key(
        "auto",
        TRUST,
        "Most samples that an update counts for; auto: three times the round's median if devices claim their counts, and no cap if the "
        "server knows them.",
        "N|auto|off",
    )
    clip_norm: Annotated[Positive | Literal["adaptive", "off"] | None, AfterValidator(_none_if_off)] = key(
        None,
        TRUST,
        "Largest norm of a client's change; larger changes are scaled down; adaptive: a bound per tier. [off]",
        "X|adaptive|off",
    )
    clip_start: Positive = key(1.0, TRUST, "Bound of --clip-norm adaptive in the first round.")
    clip_quantile: float = key(0.5, TRUST, "Share of changes that --clip-norm adaptive does not clip.", gt=0, lt=1)
    clip_rate: Positive = key(0.2, TRUST, "Rate of --clip-norm adaptive: a round changes its bound by at most e^X.")
    defence: Annotated[str, known(defences)] = key(
        "none", TRUST, "How the server screens updates that differ from the others.", names=defences
    )
    defence_strength: Positive | None = key(
        None,
        TRUST,
        "For trimmed-mean, krum and multi-krum: the share of hostile updates; for norm-filter: the allowed multiple of the median norm. "
        "[0.2; norm-filter: 3]",
    )
    outliers: bool = key(
        False,
        TRUST,
        "Report how much each update differs from the others of its tier; the server holds all updates of a round. [no]",
    )
