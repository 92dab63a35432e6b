"""Training steps in onnxruntime beside torch's, with the size of their graphs; and how long the graphs take to export.

Usage: python tools/onnx_steps.py [--quick] [--seconds S] [--json FILE] [--write] | --export

Both sides do the same work: one batch, the method's own loss, momentum SGD with weight decay, weights from the last step. They take
turns, so that a machine that slows down slows both; a ratio is the median over turns. One thread is timed by its own processor time,
which the work of others disturbs little, two threads by the clock: those need a machine that does nothing else.

``--write`` writes the tables into docs/on-device.md, between ``<!-- steps:begin -->`` and its end, and that of inference (as
``inference_shares.py`` measures it) at ``<!-- forms:begin -->``. ``--export`` exports the graphs of ResNet-18's four FedHM tiers to a
folder that is removed, and does nothing else: what is timed as a whole process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import inference_shares
import numpy as np
import torch
from bench import commit, machine
from counters.markdown import page_of, replaced
from step_tables import Facts, Row, Timed, forms_markdown, steps_markdown

from edgefl.bundle.form_choice import choice_for
from edgefl.bundle.forms import formed
from edgefl.bundle.tier_graphs import rule_of, same_network, tier_graphs, with_weights
from edgefl.bundle.write import build_tier
from edgefl.client.loop import optimizer_of
from edgefl.client.loss import loss_of
from edgefl.client.objectives import PLAIN
from edgefl.client.onnx_loop import beta_of
from edgefl.client.onnx_memory import predicted_step_bytes
from edgefl.client.parts import first_personal
from edgefl.client.training import Training
from edgefl.contrib.calibrate.bench import clock_of, interleaved, timed, torch_threads
from edgefl.methods.create import create
from edgefl.methods.personal import trained_network
from edgefl.models.base import Architecture, named_tensors
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.contexts import uncollected
from edgefl.onnxgrad.stepper import Stepper, peak_bytes
from edgefl.records import Batch, Tier
from edgefl.registry import methods, models
from edgefl.rng import generator
from edgefl.util.files import write_bytes

# A rate so small that weights stay where they are: no step is cheaper than another because it has nothing left to learn.
TRAINING = Training(epochs=1, batch_size=32, lr=1e-5, momentum=0.9, weight_decay=1e-4)
EXPORTED = Architecture("resnet18", (3, 32, 32), 10)
EXPORTED_TIERS = (1.0, 0.5, 0.25, 0.125)
INFERENCES = 100


@dataclass(frozen=True)
class Subject:
    """A network as the clients of one tier of a method train it, at its usual input."""

    model: str
    method: str = "fedavg"
    ratio: float = 1.0

    @property
    def title(self) -> str:
        """What its rows are called."""
        return f"{self.model}, {self.method}{'' if self.ratio == 1 else f' {self.ratio:g}'}"

    @property
    def architecture(self) -> Architecture:
        """The network and its input."""
        facts = models.facts(self.model)
        return Architecture(self.model, tuple(facts["usual_input"]), int(facts.get("usual_classes", 10)))

    @property
    def tiers(self) -> tuple[float, ...]:
        """The tiers of the run: the full one too, unless the method exists at one size only."""
        one_size = len(methods.load(self.method).default_tiers) == 1
        return (self.ratio,) if one_size or self.ratio == 1 else (1.0, self.ratio)


SUBJECTS = (
    Subject("mlp"),
    Subject("cnn-fashion"),
    Subject("cnn-fashion", "fedhm", 0.5),
    Subject("cnn-fashion", "fedpara", 0.4),
    Subject("cnn-fashion", "flanc", 0.5),
    Subject("resnet9"),
    Subject("resnet18"),
    Subject("resnet18", "fedhm", 0.5),
    Subject("rnn-shakespeare"),
)
QUICK = (SUBJECTS[0], SUBJECTS[2])
INFERRED = {
    Subject("resnet18", "fedhm"): EXPORTED_TIERS,
    Subject("cnn-fashion", "fedpara"): (0.4,),
    Subject("cnn-fashion", "flanc"): (0.5,),
}
"""What inference is timed of, and at which tiers."""


class Pair:
    """The same step in torch and in onnxruntime, from the same weights."""

    def __init__(self, subject: Subject) -> None:
        self.method, self.architecture = create(subject.method, tiers=subject.tiers), subject.architecture
        self.tier = Tier(subject.ratio)
        state = self.method.init(self.architecture, tuple(map(Tier, subject.tiers)), generator(0, "init"))
        personal = first_personal(self.method, self.architecture, self.tier, 0)
        self.module = trained_network(self.method, state, self.tier, personal, 0).train()
        self.graphs = tier_graphs(self.method, self.architecture, self.tier, rule_of(TRAINING), PLAIN).steps
        rng, shape = generator(0, "step"), (TRAINING.batch_size, *self.architecture.input_shape)
        ids = self.architecture.vocabulary
        self.x = rng.integers(ids, size=shape) if ids else rng.standard_normal(shape).astype(np.float32)
        self.y = rng.integers(self.architecture.classes, size=TRAINING.batch_size)
        tensors = named_tensors(self.module)
        self.first = {role: tensors[name].detach().numpy() for name, role in self.graphs.roles.tensors.items() if name in tensors}
        self.first["present"] = np.ones(self.architecture.classes, bool)

    def sides(self, threads: int = 1, lr: float = TRAINING.lr) -> dict[str, Callable[[], float]]:
        """Return what takes a step on each side, and gives the loss before it."""
        training = replace(TRAINING, lr=lr)
        stepper = Stepper(self.graphs, self.first, lr, beta_of(training), threads=threads)
        optimizer, loss = optimizer_of(self.method, self.module, training), loss_of(self.method, PLAIN)
        x, y, present = map(torch.from_numpy, (self.x, self.y, self.first["present"]))

        def in_torch() -> float:
            value = loss(self.module, Batch(x, y, present))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            return value.item()

        return {"torch": in_torch, "onnx": lambda: stepper.step(self.x, self.y)}

    def losses(self, steps: int, lr: float) -> dict[str, list[float]]:
        """Return the losses of so many steps on each side: the same, as the work is."""
        return {side: [step() for _ in range(steps)] for side, step in self.sides(lr=lr).items()}

    def timed(self, threads: int, seconds: float) -> Timed:
        """Take turns for about so many seconds."""
        clock = clock_of(threads)
        with torch_threads(threads):
            found = interleaved({side: timed(step, clock) for side, step in self.sides(threads).items()}, seconds)
        pairs = [(t, o) for (t,), (o,) in zip(found["torch"], found["onnx"], strict=True)]
        torch_s, onnx_s = (median(pair[side] for pair in pairs) for side in (0, 1))
        return Timed(threads, torch_s, onnx_s, median(o / t for t, o in pairs))

    def facts(self) -> Facts:
        """Return sizes."""
        (graph,) = self.graphs.steps
        return Facts(len(graph), sum(self.first[value].nbytes for value in self.graphs.roles.trained.values()))

    def memory(self) -> tuple[int, int]:
        """Return the bytes of a step: predicted, and those between steps, of the batch, and that onnxruntime reports besides."""
        graphs = self.graphs.steps
        stepper = Stepper(self.graphs, self.first, TRAINING.lr, beta_of(TRAINING))
        scalars = {"lr": np.zeros((), np.float32), "beta": np.zeros((), np.float32)}
        peak = max(peak_bytes(graph, {**self.first, **scalars, "x": self.x, "y": self.y}) for graph in graphs)
        samples = len(self.x)
        predicted = predicted_step_bytes(self.graphs, TRAINING.optimizer, self.x.nbytes // samples, samples, samples)
        return predicted, stepper.held_bytes + self.x.nbytes + peak


def rows_of(subjects: Sequence[Subject], threads: Sequence[int], seconds: float) -> list[Row]:
    """Measure; all on one thread first, so that no other thread is there to wait for work."""
    pairs = {subject.title: Pair(subject) for subject in subjects}
    facts = {title: pair.facts() for title, pair in pairs.items()}
    times: dict[str, list[Timed]] = {title: [] for title in pairs}
    for count in threads:
        for title, pair in pairs.items():
            print(f"{title}, threads: {count}", file=sys.stderr, flush=True)
            times[title].append(pair.timed(count, seconds))
    return [Row(title, facts[title], tuple(times[title])) for title in pairs]


def export(out: Path) -> None:
    """Write the graphs of every tier, forward, train and predict, with the reference that the forward graph is held to."""
    method, tiers = create("fedhm", tiers=EXPORTED_TIERS), tuple(map(Tier, EXPORTED_TIERS))
    state = method.init(EXPORTED, tiers, generator(0, "init"))
    for tier in tiers:
        network = method.deploy(state, tier)
        module = formed(network, "auto", choice_for(network, EXPORTED.samples(1)).composed).module
        graphs = tier_graphs(method, EXPORTED, tier, rule_of(TRAINING), PLAIN)
        ready = with_weights(graphs, module) if same_network(module, trained_network(method, state, tier)) else None
        reference = generator(0, "reference", tier.label)
        files = build_tier(module, InputSpec(EXPORTED.input_shape), tier.label, reference, graph=ready).contents
        trained = {f"{tier.label}/train.onnx": graphs.steps.steps[0], f"{tier.label}/predict.onnx": graphs.predict}
        for path, content in {**files, **trained}.items():
            (out / path).parent.mkdir(exist_ok=True)
            write_bytes(out / path, content)


def export_seconds() -> float:
    """Return how long a process takes that does nothing but export, from its start to its end."""
    started = time.perf_counter()
    subprocess.run([sys.executable, __file__, "--export"], check=True)
    return time.perf_counter() - started


def write(name: str, body: str, page: Path | None) -> None:
    """Write a table into its page."""
    page = page or page_of(name)
    page.write_text(replaced(page.read_text(encoding="utf-8"), name, body), encoding="utf-8")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small networks on one thread, no export: that it works")
    parser.add_argument("--seconds", type=float, help="of turns for each network and number of threads [10; quick: 0.2]")
    parser.add_argument("--threads", default="1,2", help="separated by commas [1,2]")
    parser.add_argument("--no-export", action="store_true", help="leave the export out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--write", action="store_true", help="replace the tables of docs/on-device.md, that of inference too")
    parser.add_argument("--page", type=Path, help="the file with the markers [docs/on-device.md]")
    parser.add_argument("--export", action="store_true", help="export and do nothing else")
    options = parser.parse_args()
    if (options.quick or options.no_export) and options.write:
        parser.error("--write takes all figures: leave --quick and --no-export out")
    if options.export:
        with tempfile.TemporaryDirectory() as folder, torch_threads(1), uncollected():
            export(Path(folder))
        return
    export_s = None if options.quick or options.no_export else export_seconds()
    threads = [1] if options.quick else [int(count) for count in options.threads.split(",")]
    seconds = options.seconds or (0.2 if options.quick else 10.0)
    rows = rows_of(QUICK if options.quick else SUBJECTS, threads, seconds)
    text = steps_markdown(rows, TRAINING.batch_size, export_s)
    print(text)
    if options.json:
        found = {"commit": commit(), "machine": machine(), "export_s": export_s, "rows": [asdict(row) for row in rows]}
        options.json.write_text(f"{json.dumps(found, indent=2)}\n", encoding="utf-8")
    if options.write:
        write("steps", text, options.page)
        with torch_threads(1):
            shares = {
                subject.title: inference_shares.rows_of(subject.method, subject.architecture, list(tiers), INFERENCES)
                for subject, tiers in INFERRED.items()
            }
        write("forms", forms_markdown(shares), options.page)


if __name__ == "__main__":
    main()
