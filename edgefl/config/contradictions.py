"""Keys of a run that contradict each other."""

from collections.abc import Iterator

from edgefl.config.group import CoreKeys
from edgefl.registry import defences, engines, objectives


def groups_clients(config: CoreKeys) -> bool:
    """Return whether the engine of a run trains clients together, so that float32 numbers add up in another order."""
    return config.engine in engines.names() and bool(engines.facts(config.engine).get("groups_clients"))


def training_problems(config: CoreKeys) -> Iterator[str]:
    """Yield a message for each contradiction between the keys of the network and of local training."""
    if config.new_classifier and config.weights is None:
        yield "new_classifier: the last layer begins with random values unless there are weights; give weights too"
    if config.engine == "inline" and config.workers != 1:
        yield f"engine: inline has one worker, got workers = {config.workers}; use pool"
    if groups_clients(config) and (config.enforce == "hard" or config.runtime == "onnx"):
        alone = "enforce hard" if config.enforce == "hard" else "runtime onnx"
        yield f"engine: {config.engine} trains clients together, and {alone} trains them one by one; use pool"
    needs = objectives.facts(config.objective).get("needs", ())
    if "plain_sgd" in needs and (config.optimizer != "sgd" or config.weight_decay):
        actual = f"got {config.optimizer} and {config.weight_decay:g}"
        steps = f"{config.objective} computes gradients from plain SGD steps"
        yield f"objective: {steps}; give optimizer sgd and weight_decay 0, {actual}"
    if "fixed_coordinates" in needs and config.tier_assignment == "dynamic":
        stores = f"{config.objective} stores a gradient of every weight on its client; with tier_assignment dynamic"
        yield f"objective: {stores} these weights change from round to round; give tier_assignment auto or uniform"
    if "rounds" in needs and config.mode == "async":
        yield f"mode: {config.objective} corrects gradients by a tensor of the round's start, and async has no rounds; give mode sync"
    if "rounds" in defences.facts(config.defence).get("needs", ()) and config.mode == "async":
        yield f"mode: {config.defence} compares changes of one model, and async has no rounds; give mode sync, or clip_norm instead"
    screens = [key for key, on in (("clip_norm", config.clip_norm is not None), ("defence", config.defence != "none")) if on]
    if screens and "fixed_coordinates" in needs:  # it stores tensors of every client's answer, before they are screened
        yield (
            f"objective: {config.objective} adds up more on the server than {screens[0]} screens, so that a hostile client gets past it; "
            "give objective none or prox"
        )
    if "recompute" in config.on_shortfall and config.runtime == "onnx":
        yield (
            "on_shortfall: recompute needs torch, and runtime onnx runs training graphs that save all activations; give runtime torch "
            "or leave recompute out"
        )
    if "send" in config.on_shortfall and config.enforce == "plan":
        yield "on_shortfall: send needs a device that meters its memory, and enforce plan only predicts it; give enforce meter or hard"


def network_problems(config: CoreKeys) -> Iterator[str]:
    """Yield a message for each contradiction between the keys of the networks of tiers and others."""
    if config.tier is None:
        return
    if config.model not in (None, config.tier["1"]):
        yield f"model: got {config.model}, and tier 1 has the network {config.tier['1']}; leave model out"
    if config.weights is not None:
        yield "weights: a file has the tensors of one network, and tier names several; leave weights out"
    if config.tiers == "auto":
        yield "tiers: auto looks for sizes of one network, and tier names a network for each size; leave tiers out"
        return
    for label in (f"{ratio:g}" for ratio in config.tiers or () if f"{ratio:g}" not in config.tier):
        yield f"tier: no network for tier {label} of tiers; give it one, or leave tiers out"


def fleet_problems(config: CoreKeys) -> Iterator[str]:
    """Yield a message for each contradiction between the keys of tiers, clients and rounds."""
    if (shares := config.tier_shares) is not None:
        if config.tier_assignment == "auto":
            yield "tier_shares: with tier_assignment auto the devices decide; give tier_assignment uniform or dynamic"
        if isinstance(config.tiers, tuple) and len(config.tiers) != len(shares):
            yield f"tier_shares: got {len(shares)} shares for {len(config.tiers)} tiers; give one for each"
        if any(share < 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
            yield f"tier_shares: expected shares from 0 that add up to 1, got {', '.join(f'{s:g}' for s in shares)}"
    if config.per_round is not None and config.per_round > config.clients:
        yield f"per_round: got {config.per_round}, expected at most the {config.clients} clients"
    if config.over_selection not in (None, 1.0) and config.mode == "async":
        yield "over_selection: a round selects more clients than it needs, and mode async has no rounds; give mode sync, or leave it out"
    if config.buffer is not None and config.mode == "sync":
        yield "buffer: only asynchronous rounds have one; give mode async"
    if config.buffer is not None and config.buffer > config.clients:
        yield f"buffer: got {config.buffer}, expected at most the {config.clients} clients: each sends one update per step"
