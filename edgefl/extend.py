"""What a plug-in imports: the contract of each part of a run, its decorator, and what parts are made of.

A plug-in is a Python file or module outside of the package. Decorated definitions are known by name once it is imported: by
``--plugin FILE``, by ``RunConfig(plugins=[...])``, by an ``import`` in your script, or at an entry point of an installed package
(``edgefl.methods``, ``edgefl.models``, ``edgefl.datasets``, ``edgefl.codecs``, ``edgefl.objectives``, ``edgefl.server_optimizers``,
``edgefl.adversaries``, ``edgefl.defences``, ``edgefl.stages``, ``edgefl.samplers``, ``edgefl.engines``, ``edgefl.loggers``,
``edgefl.export_formats``; ``edgefl.profiles`` names a package with folders ``devices``, ``links`` and ``fleets``)::

    @method("mine")
    class Mine(FedAvg): ...

    edgefl simulate --plugin mine.py --method mine

``pytest --pyargs edgefl.testing.contract --plugin mine.py --method mine`` checks a method by the rules of the package's own. There are such
rules for codecs, objectives, server optimizers, adversaries, defences, data sets, models, engines and devices too.

>>> issubclass(FedAvg, Method), FedAvg.default_tiers
(True, (1.0,))
"""

import importlib
from typing import TYPE_CHECKING, Protocol

from torch import nn

from edgefl.client.client import Clients as Clients
from edgefl.client.job import Job as Job
from edgefl.client.objective import Objective as Objective
from edgefl.client.stage import AtClient as AtClient
from edgefl.client.stage import Leaving as Leaving
from edgefl.client.stage import Stage as Stage
from edgefl.client.stage import Turn as Turn
from edgefl.data.sources import Dataset as Dataset
from edgefl.data.split import Split as Split
from edgefl.engine.contract import Engine as Engine
from edgefl.factor.width import cut as cut
from edgefl.log.contract import LoggedRun as LoggedRun
from edgefl.log.contract import Logger as Logger
from edgefl.methods.averaging import WeightedSum as WeightedSum
from edgefl.methods.base import Method as Method
from edgefl.methods.capabilities import ByLabel as ByLabel
from edgefl.methods.capabilities import Composes as Composes
from edgefl.methods.capabilities import Distilled as Distilled
from edgefl.methods.capabilities import Distils as Distils
from edgefl.methods.capabilities import Draws as Draws
from edgefl.methods.capabilities import Factorizes as Factorizes
from edgefl.methods.capabilities import Figures as Figures
from edgefl.methods.capabilities import Phased as Phased
from edgefl.methods.capabilities import Rebases as Rebases
from edgefl.methods.capabilities import Remembers as Remembers
from edgefl.methods.fedavg import FedAvg as FedAvg
from edgefl.methods.networks import cut_out as cut_out
from edgefl.methods.networks import upload_shapes as upload_shapes
from edgefl.methods.options import MethodConfig as MethodConfig
from edgefl.methods.penalties import Penalised as Penalised
from edgefl.methods.personal import Personal as Personal
from edgefl.methods.personal import Receives as Receives
from edgefl.methods.state import GlobalState as GlobalState
from edgefl.methods.updates import checked as checked
from edgefl.records import Batch as Batch
from edgefl.records import Outcome as Outcome
from edgefl.records import Tier as Tier
from edgefl.records import Update as Update
from edgefl.registry import OF_FEATURES
from edgefl.registry import codec as codec
from edgefl.registry import dataset as dataset
from edgefl.registry import defence as defence
from edgefl.registry import engine as engine
from edgefl.registry import logger as logger
from edgefl.registry import method as method
from edgefl.registry import model as model
from edgefl.registry import objective as objective
from edgefl.registry import sampler as sampler
from edgefl.registry import server_optimizer as server_optimizer
from edgefl.registry import stage as stage
from edgefl.rng import generator as generator
from edgefl.server.defence import Centre as Centre
from edgefl.server.defence import Defence as Defence
from edgefl.server.defence import Filter as Filter
from edgefl.server.optimizer import ServerOptimizer as ServerOptimizer
from edgefl.server.sampler import Known as Known
from edgefl.server.sampler import Sampler as Sampler
from edgefl.wire.codec import Codec as Codec
from edgefl.wire.codec import Part as Part

if TYPE_CHECKING:
    from edgefl.contrib.attacks.adversary import Adversary as Adversary
    from edgefl.contrib.attacks.kinds import adversary as adversary
for _kind in OF_FEATURES:  # the decorator and the contract of each kind of part that a feature brings
    _module, _, _contract = _kind.interface.base.partition(":")
    globals().update({_kind.kind: _kind, _contract: getattr(importlib.import_module(_module), _contract)})
    del _kind


class Model(Protocol):
    """A function decorated with ``@model("name", usual_input=(3, 32, 32))`` that returns a network with random weights."""

    def __call__(self, input_shape: tuple[int, ...], classes: int, *, width: float) -> nn.Module:
        """Return the network for samples of ``input_shape``, its hidden layers scaled to ``width`` in (0, 1].

        If it has normalisation layers, it also takes ``norm``, a policy of :mod:`edgefl.models.norm`.
        """
        ...
