"""edgefl as a contestant of peerbench: ``edgefl.simulate`` as a user calls it, on the same work as the others.

Usage: python contestants/edgefl_.py SCENARIO

Records, checkpoints, metering of memory (``enforce`` is "meter", the default) and simulated time are on, as a user gets them. Three
settings differ from the defaults to make the work the same: no weight decay, a fleet of one class whose devices all answer, and no
evaluation before the last round, then on 100 samples. PB_ENGINE [auto] and PB_WORKERS choose how this computer does the work.
"""

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).absolute().parent.parent))
import common as C

MODELS = {"S": "cnn-5x5", "T": "cnn-tiny"}


def host():
    """Return the keys of the configuration that say how this computer does the work."""
    asked = {"engine": os.environ.get("PB_ENGINE", "auto"), "workers": os.environ.get("PB_WORKERS")}
    return {key: int(value) if key == "workers" else value for key, value in asked.items() if value}


def main():
    """Play a scenario and report it."""
    rec = C.Recorder("edgefl", sys.argv[1])
    import torch

    import edgefl
    from edgefl.server.checkpoint import of_file

    kind, clients, per_round = C.SCENARIOS[sys.argv[1]]
    config = edgefl.RunConfig(
        profile="laptop",
        conditions="ideal",
        method="fedavg",
        tiers=(1.0,),
        dataset="fashion-mnist",
        data_dir=C.SRC,
        partition="iid",
        model=MODELS[kind],
        clients=clients,
        per_round=per_round,
        rounds=C.ROUNDS,
        local_epochs=1,
        batch_size=C.BATCH,
        lr=C.LR,
        momentum=C.MOM,
        weight_decay=0.0,
        eval_every=C.ROUNDS,
        eval_samples=100,
        seed=C.SEED,
        **host(),
    )
    rec.imported()
    played = []

    def on_round(record):
        rec.mark()
        played.append([c.expected.samples for c in record.clients if c.status == "trained"])

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        edgefl.simulate(config, run, on_round=on_round)
        # The configuration is what a run writes just before it starts workers and clients: everything after that is in the first round.
        rec.marks.insert(0, (run / "config.toml").stat().st_mtime)
        own = of_file(run / "model.safetensors").model.tensors
    assert played == [[60000 // clients] * per_round] * C.ROUNDS, played
    network = C.make_model(kind)
    layers = ("conv1", "conv2", *(["hidden"] if kind == "S" else []), "fc")
    with torch.no_grad():
        for parameter, name in zip(network.parameters(), (f"{n}.{p}" for n in layers for p in ("weight", "bias")), strict=True):
            parameter.copy_(own[name])
    rec.done(network, version="edgefl " + version("edgefl-sim"), **host())


if __name__ == "__main__":  # workers import this file anew
    main()
