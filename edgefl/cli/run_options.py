"""The flags that stand for a run's keys, grouped for help, and what is given with them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from edgefl.cli.options import Numbers, Tiers, Words
from edgefl.cli.sections import option, stack
from edgefl.registry import datasets, methods, models

F = TypeVar("F", bound=Callable[..., Any])
_WORD = re.compile(r"[A-Za-z][\w./-]*")

WHAT = "What is trained, and for whom"
DATA = "Who holds which data"
ROUNDS = "Rounds and chance"
TIERS = "Tiers"
CLIENT = "Training on a client"
SERVER = "The server, and what travels"
FLEET = "The fleet"
HOST = "This computer"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def run_options(leave_out: Sequence[str] = ()) -> Callable[[F], F]:
    """Return the decorator that adds a flag for every key of a run but ``leave_out`` and the method's own options.

    Their values are checked with the rest of the configuration, by :class:`edgefl.config.RunConfig`; None stands for "not given".
    """
    flags = {name: decorator for name, decorator in _FLAGS.items() if name not in leave_out}
    return lambda command: stack(command, list(flags.values()))


def _flag(section: str, name: str, help_: str, type_: Any = None, metavar: str | None = None) -> tuple[str, Callable[[F], F]]:
    # A type that is a class of ours writes its own metavar.
    numeric = {int: "N", float: "X"}
    settings = {"metavar": metavar or numeric.get(type_)} if metavar or type_ in numeric else {}
    return name, option(f"--{name.replace('_', '-')}", section=section, help=help_, type=type_, **settings)


_PERMUTE = option(
    "--permute-labels/--no-permute-labels",
    section=DATA,
    default=None,
    help="Every client has its own names for the labels; accuracy is then the mean over clients. [no]",
)

_DYNAMIC = option(
    "--dynamic-devices/--static-devices",
    section=FLEET,
    default=None,
    help="Memory and speed of devices change from round to round, as the profile says, and with them tiers. [static]",
)

_FLAGS: dict[str, Callable[[Any], Any]] = dict(
    (
        _flag(WHAT, "profile", "Fleet or device; see 'edgefl devices'. [phone]", metavar="NAME|FILE"),
        _flag(WHAT, "method", f"{_listed(methods.names())}; see 'edgefl methods'. [fedhm]", metavar="NAME"),
        _flag(WHAT, "model", f"{_listed(models.names())}. [the data set's own]", metavar="NAME"),
        _flag(WHAT, "norm", "Normalisation of the network: group, static, batch or none. [the model's own]", metavar="POLICY"),
        _flag(
            WHAT,
            "dataset",
            f"{_listed(datasets.names())}, or several as one with a domain each: a+b. [digits]",
            metavar="NAME[+NAME…]",
        ),
        _flag(WHAT, "data_dir", "Folder with the data set's files.", metavar="DIR"),
        _flag(DATA, "clients", "Clients in the population. [20]", int),
        _flag(
            DATA,
            "partition",
            "iid; dirichlet:A, uneven labels; classes:K, K labels each; natural, as the data set names owners; index:S or index:S:A, "
            "each client draws S samples (uneven labels), for any number of clients. [dirichlet:0.5]",
            metavar="SPEC",
        ),
        _flag(DATA, "data_share", "Share of its training samples that each client keeps. [1]", float),
        ("permute_labels", _PERMUTE),
        _flag(ROUNDS, "rounds", "Rounds to play; in mode async, steps of the server. [30]", int),
        _flag(
            ROUNDS, "per_round", "Answers wanted each round; in mode async, clients at work at once. [half of the clients]", int
        ),
        _flag(ROUNDS, "eval_every", "Rounds between two evaluations; the last one is always evaluated. [1]", int),
        _flag(
            ROUNDS,
            "eval_samples",
            "Held-out samples to evaluate on, drawn by the seed. [all after the last round, 1,000 before]",
            int,
        ),
        _flag(ROUNDS, "seed", "Decides every draw. [0]", int),
        _flag(
            TIERS,
            "tiers",
            "Sizes of sub-models, largest first; auto: the largest that fits each class. [the method's own]",
            Tiers(auto=True),
            metavar="R,R,…|auto",
        ),
        _flag(
            TIERS,
            "tier_assignment",
            "auto: each class of devices takes the largest tier that fits its budgets; uniform: each client keeps one drawn "
            "from those that fit; dynamic: drawn anew every round. [auto]",
            metavar="HOW",
        ),
        _flag(TIERS, "tier_shares", "Shares of the clients at each tier, where it is drawn. [all alike]", Numbers("0.5,0.3,0.2")),
        _flag(CLIENT, "local_epochs", "Passes over its data that a client makes a round. [digits: 5, else 1]", int),
        _flag(CLIENT, "batch_size", "Samples of a training step. [32]", int),
        _flag(
            CLIENT,
            "runtime",
            "What takes training steps: torch, or onnx (onnxruntime, by exported graphs). [torch]",
            metavar="WHAT",
        ),
        _flag(CLIENT, "micro_batch", "Samples at once; gradients are accumulated over a batch. [the batch]", int),
        _flag(CLIENT, "optimizer", "momentum, sgd or adam. [momentum]", metavar="NAME"),
        _flag(CLIENT, "lr", "Learning rate. [0.05]", float),
        _flag(CLIENT, "lr_schedule", "constant, or cosine: down to 0 over the rounds. [constant]", metavar="NAME"),
        _flag(CLIENT, "momentum", "Of the optimizer momentum. [0.9]", float),
        _flag(CLIENT, "weight_decay", "Added to gradients, times the weights. [0.0001]", float),
        _flag(
            CLIENT,
            "objective",
            "Beside the method's loss: prox (FedProx), dyn (FedDyn), scaffold (SCAFFOLD) or none. [none]",
            metavar="NAME",
        ),
        _flag(CLIENT, "objective_strength", "μ of prox, α of dyn. [0.1]", float),
        _flag(
            SERVER,
            "server_optimizer",
            "avg: take the aggregate; avgm (FedAvgM), adam (FedAdam), yogi (FedYogi). [avg]",
            metavar="NAME",
        ),
        _flag(SERVER, "server_lr", "Its rate. [1; adam and yogi 0.01]", float),
        _flag(SERVER, "codec", "How updates travel up: fp32, fp16, int8 or sparse. [fp32]", metavar="NAME"),
        _flag(
            FLEET,
            "conditions",
            "fleet: as its profile says, links vary and sessions are lost; ideal: typical links, no losses, no batteries. [fleet]",
            metavar="NAME",
        ),
        _flag(
            FLEET,
            "over_selection",
            "Clients asked for each answer wanted, in rounds. [the profile's own, phones 1.3; ideal: 1]",
            float,
        ),
        _flag(FLEET, "deadline_s", "Seconds in which a session must end; decides tiers too. [the profile's own]", float),
        _flag(
            FLEET,
            "availability",
            "always; daily, by the hour of the day; or a trace (CSV or Parquet: client, from, to, state). [always]",
            metavar="HOW|FILE",
        ),
        _flag(
            FLEET,
            "eligible_when",
            "What a device must be to take part, by a trace; with daily it only says whether devices charge. [all three]",
            Words(),
            metavar="WORD,…",
        ),
        _flag(FLEET, "start_hour", "Local hour at which the simulated clock starts. [0]", float),
        ("dynamic_devices", _DYNAMIC),
        _flag(
            FLEET,
            "mode",
            "sync: rounds; async: the server steps whenever --buffer updates are in (FedBuff). [sync]",
            metavar="NAME",
        ),
        _flag(FLEET, "buffer", "Updates that the server waits for in mode async. [half of --per-round]", int),
        _flag(FLEET, "staleness_power", "An update s steps old counts 1/(1 + s)^X in mode async. [0.5]", float),
        _flag(
            FLEET,
            "enforce",
            "Memory is decided on beforehand (plan), metered too as clients train (meter), or limited by the system, a process for each "
            "(hard). [meter]",
            metavar="LEVEL",
        ),
        _flag(
            FLEET,
            "on_shortfall",
            "What to try, in order, where a tier does not fit: micro-batch, tier; end with refuse (which goes without saying) or send "
            "(sent all the same). [micro-batch,tier]",
            Words(),
            metavar="STEP,…",
        ),
        _flag(HOST, "cpu_limit_s", "Whole processor seconds that a client may take under --enforce hard. [600]", float),
        _flag(
            HOST,
            "engine",
            "inline (this process) or pool (--workers processes): the same bits; group: clients of a tier trained together, to within "
            "rounding; auto: the fastest, by a short trial. [inline]",
            metavar="HOW",
        ),
        _flag(HOST, "workers", "Processes that play clients; auto takes as many as there are cores. [1]", int),
        _flag(HOST, "device", "cpu, or cuda: clients train on the graphics card. [cpu]", metavar="WHERE"),
    )
)


def config_option(command: F) -> F:
    """Add ``--config``."""
    help_ = "TOML file with these keys (dashes as underscores); flags win."
    return option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help=help_)(command)


def given_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given."""
    return {key: value for key, value in flags.items() if value is not None}


class MethodOption(click.ParamType[tuple[str, Any]]):
    """``KEY=VALUE`` with a TOML value; a bare word is text.

    >>> MethodOption().convert("frobenius_decay=0.001", None, None), MethodOption().convert("sampling=uniform", None, None)
    (('frobenius_decay', 0.001), ('sampling', 'uniform'))
    """

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Return key and value; whether the method has such an option is checked with the rest of the configuration."""
        if isinstance(value, tuple):
            return value
        key, separator, text = (part.strip() for part in str(value).partition("="))
        if not separator or not key or not text:
            self.fail(f"{value!r} is not of the form KEY=VALUE, such as frobenius_decay=0.001", param, ctx)
        try:
            read = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            read = {"value": text} if _WORD.fullmatch(text) else {}
        if list(read) != ["value"]:
            forms = "a number, true, false, a word, \"text\", [a, list] or {a = 'table'}"
            self.fail(f"{text!r} is not a TOML value: {forms}", param, ctx)
        return key, read["value"]
