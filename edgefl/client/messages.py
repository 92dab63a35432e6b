"""How tasks, jobs, outcomes and errors travel from one process to another, as :mod:`edgefl.wire.message` writes them.

A method travels as its name in the registry (``module:class`` if it has none) and its options, a tier as its ratio, training graphs
as blobs. A job is a row of its numbers and of references to its bytes. A reference is the hash of a blob. Between processes that share
memory it may be a length instead: these bytes lie there in the order of their jobs, and are not hashed.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from pydantic import TypeAdapter

import edgefl.errors as errors
import edgefl.plugins as plugins
from edgefl.client.conduct import Conduct
from edgefl.client.criterion import Criterion
from edgefl.client.job import Job, Task
from edgefl.client.objective import objective_named
from edgefl.client.stage import Stage
from edgefl.consent import receive, sent
from edgefl.errors import ConfigError, EdgeflError, WireError
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.methods.options import config_class
from edgefl.models.custom import architecture_in
from edgefl.records import Ending, Outcome, Tier
from edgefl.registry import conducts, methods, stages
from edgefl.wire.message import Blob, MessageFields, read_header, read_message, write_header, write_message

if TYPE_CHECKING:
    from edgefl.onnxgrad.stepper import StepGraphs

Reference = str | int | None
"""Bytes of a job or an outcome: a blob's hash, a length, or None where there are none."""
Fetch = Callable[[str], bytes]
"""Returns the blob that has a hash."""


class JobSetup(NamedTuple):
    """The common part of jobs of one tier and one phase of a method; ``graphs`` only if onnxruntime trains."""

    method: Method
    tier: Tier
    graphs: StepGraphs | None


def write_setup(setup: JobSetup) -> tuple[Blob, ...]:
    """Return the header of a setup, and the blobs that it refers to. The header's hash stands for the setup."""
    method, tier, graphs = setup
    kind, options = type(method), method.config.model_dump(mode="json")
    name = methods.name_of(kind) or f"{kind.__module__}:{kind.__qualname__}"
    written, blobs = None, tuple[Blob, ...]()
    if graphs is not None:
        blobs = tuple(map(Blob, (*graphs.steps, *graphs.passes, graphs.update)))
        digests, steps = [blob.digest for blob in blobs], len(graphs.steps)
        written = {"steps": digests[:steps], "passes": digests[steps:-1], "update": digests[-1], "roles": graphs.roles}
    fields = {"method": name, "options": options, "tier": tier.ratio, "graphs": written}
    return Blob(write_header("setup", fields)), *blobs


class Setups:
    """The setups of jobs as they travel. Consecutive jobs of a tier with the same method object share one, written and hashed once."""

    def __init__(self) -> None:
        self._last: dict[Tier, tuple[JobSetup, tuple[Blob, ...]]] = {}

    def of(self, job: Job) -> tuple[Blob, ...]:
        """Return the setup of ``job`` as :func:`write_setup` returns it."""
        last = self._last.get(job.tier)
        if last is None or last[0].method is not job.method or last[0].graphs is not job.graphs:
            setup = JobSetup(job.method, job.tier, job.graphs)
            last = self._last[job.tier] = setup, write_setup(setup)
        return last[1]


def read_setup(header: bytes, graph: Fetch) -> JobSetup:
    """Return the setup of ``header``; ``graph`` fetches its blobs. Raise :class:`WireError` if its method or a field is unknown here."""
    fields, _ = read_header(header, "setup")
    with _reading("a setup"):
        name, written = fields["method"], fields["graphs"]
        if ":" in name:
            kind = defined(name, Method)
            method = kind(config_class(kind).model_validate(fields["options"]))
        else:
            method = create(name, fields["options"])
        return JobSetup(method, Tier(fields["tier"]), None if written is None else _graphs(written, graph))


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise WireError(f"{what} cannot be read: {error!r}") from None


def _graphs(written: MessageFields, graph: Fetch) -> StepGraphs:
    from edgefl.onnxgrad.roles import Roles
    from edgefl.onnxgrad.stepper import StepGraphs  # workers that train in torch do without onnxruntime

    steps, passes = (tuple(map(graph, written[key])) for key in ("steps", "passes"))
    return StepGraphs(steps, Roles.read(written["roles"]), passes, graph(written["update"]))


def defined(name: str, base: type) -> Any:
    """Return the subclass of ``base`` that is called ``module:class``; raise :class:`WireError` if there is none here."""
    module, _, path = name.partition(":")
    try:
        kind = attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        problem = f"{name} cannot be found in another process ({error}): define it at the top of a module or script"
        raise WireError(problem) from None
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise WireError(f"{name} is no subclass of {base.__name__}")
    return kind


def task_fields(task: Task) -> MessageFields:
    """Return the JSON form of a task, for :func:`edgefl.wire.message.write_header`."""
    objective = task.objective.name, task.objective.strength
    return {
        **vars(task),
        "pinned": sent(),
        "architecture": task.architecture.fields(),
        "objective": objective,
        "criterion": task.criterion.fields(),
        "stages": [(stage.name, stage.fields()) for stage in task.stages],
        "conduct": None if task.conduct is None else (task.conduct.name, task.conduct.fields()),
    }


def task_of(fields: MessageFields) -> Task:
    """Return the task of its JSON form; raise :class:`WireError` if a field is missing, unknown or of another type.

    Code that it names runs: a process trusts the server that has started it.
    """
    fields = dict(fields)
    with _reading("a task"):
        receive(fields.pop("pinned", ()))
    plugins.load(fields.get("plugins") or ())  # architecture, objective and jobs may need them
    with _reading("a task"):
        parts = {"architecture": architecture_in(fields["architecture"]), "objective": objective_named(*fields["objective"])}
        parts |= {"criterion": Criterion.read(fields["criterion"])}
        parts |= {"stages": tuple(_stage(*of) for of in fields["stages"])}
        parts |= {"conduct": None if fields["conduct"] is None else _conduct(*fields["conduct"])}
        return TypeAdapter(Task).validate_python({**fields, **parts})


def _stage(name: str, fields: MessageFields) -> Stage:
    kind: type[Stage] = stages.load(name)
    return kind.of(fields)


def _conduct(name: str, fields: MessageFields) -> Conduct:
    made: Conduct = conducts.load(name).of(**fields)
    return made


def job_row(job: Job, setup: str, payload: Reference, kept: Reference) -> tuple[Any, ...]:
    """Return the JSON form of a job; ``setup`` is the hash of its setup."""
    of_client = job.memory_bytes, job.micro_batch, job.eval_after_training, job.recompute, job.weight, job.handed
    return setup, payload, kept, job.round, job.client, *of_client


def job_of(row: Sequence[Any], setup: JobSetup, payload: bytes, kept: bytes | None) -> Job:
    """Return the job of a JSON form, its setup and its bytes."""
    round_, client, memory_bytes, micro_batch, evaluates, recompute, weight, handed = row[3:]
    of_client = round_, client, setup.method, setup.tier
    return Job(*of_client, payload, kept, memory_bytes, micro_batch, setup.graphs, evaluates, tuple(recompute), weight, handed)


def outcome_row(outcome: Outcome, payload: Reference, kept: Reference) -> tuple[Any, ...]:
    """Return the JSON form of an outcome."""
    return payload, kept, *(getattr(outcome, name) for name in _OUTCOME)


def outcome_of(row: Sequence[Any], payload: bytes, kept: bytes) -> Outcome:
    """Return the outcome of a JSON form and its bytes; raise :class:`WireError` if a field is missing or the status is unknown."""
    if len(row) != len(_OUTCOME) + 2 or row[3] not in _ENDINGS or any(type(label) is not int for label in row[-1] or ()):
        raise WireError(f"an outcome cannot be read: {row!r}")
    outcome = Outcome(**dict(zip(_OUTCOME, row[2:], strict=True)), payload=payload, kept=kept)
    return outcome if outcome.labels is None else replace(outcome, labels=tuple(outcome.labels))


# Payload and stored tensors travel as bytes. The labels are last.
_OUTCOME = [*(field.name for field in fields(Outcome) if field.name not in ("payload", "kept", "labels")), "labels"]
_ENDINGS = get_args(Ending)


class Shared(NamedTuple):
    """A setup or a payload that many jobs may need: the hash that stands for it, and its blobs."""

    digest: str
    blobs: tuple[Blob, ...]


def apart(jobs: Iterable[Job], setups: Setups) -> tuple[list[tuple[Any, ...]], list[Blob], list[Shared]]:
    """Return the JSON forms of ``jobs``, the blobs that only one job needs, and each setup and payload that others may need too."""
    rows, own, shared = [], list[Blob](), dict[str, Shared]()
    for job in jobs:
        setup, payload = setups.of(job), Blob.of(job.payload)
        kept = () if job.kept is None else (Blob.of(job.kept),)
        shared.setdefault(setup[0].digest, Shared(setup[0].digest, setup))
        if job.method.per_client:
            own.append(payload)
        else:
            shared.setdefault(payload.digest, Shared(payload.digest, (payload,)))
        own += kept
        rows.append(job_row(job, setup[0].digest, payload.digest, kept[0].digest if kept else None))
    return rows, own, list(shared.values())


def together(rows: Sequence[Sequence[Any]], blobs: Mapping[str, Blob], setups: dict[str, JobSetup]) -> list[Job]:
    """Return the jobs of JSON forms and their blobs. ``setups`` has those that were read before, and gets the new ones.

    Raises:
        WireError: a blob is missing, or something cannot be read.
    """
    with _reading("jobs"):
        for digest in dict.fromkeys(row[0] for row in rows):
            if digest not in setups:
                setups[digest] = read_setup(blobs[digest], blobs.__getitem__)
        return [job_of(row, setups[row[0]], blobs[row[1]], None if row[2] is None else blobs[row[2]]) for row in rows]


def write_jobs(jobs: Iterable[Job], setups: Setups) -> bytes:
    """Return a message with all that ``jobs`` need. It contains payloads and setups that jobs share once."""
    rows, own, shared = apart(jobs, setups)
    return write_message("jobs", {"jobs": rows}, [*own, *(blob for item in shared for blob in item.blobs)])


def read_jobs(content: bytes) -> list[Job]:
    """Return the jobs of a message; raise :class:`WireError` if it is damaged, cut short, or of another version."""
    fields, blobs = read_message(content, "jobs")
    with _reading("jobs"):
        return together(fields["jobs"], blobs, {})


def write_outcomes(outcomes: Iterable[Outcome], **fields: Any) -> bytes:
    """Return a message with ``outcomes`` and their bytes, and other ``fields``."""
    entries = [(outcome, Blob.of(outcome.payload), Blob.of(outcome.kept)) for outcome in outcomes]
    rows = [outcome_row(outcome, payload.digest, kept.digest) for outcome, payload, kept in entries]
    return write_message("outcomes", {"outcomes": rows, **fields}, (blob for _, *both in entries for blob in both))


def read_outcomes(content: bytes) -> list[Outcome]:
    """Return the outcomes of a message; raise :class:`WireError` if it is damaged, cut short, or of another version."""
    return outcomes_in(*read_message(content, "outcomes"))


def outcomes_in(fields: MessageFields, blobs: Mapping[str, Blob]) -> list[Outcome]:
    """Return the outcomes of a message that was read into ``fields`` and ``blobs``."""
    with _reading("outcomes"):
        return [outcome_of(row, blobs[row[0]], blobs[row[1]]) for row in fields["outcomes"]]


def error_fields(error: BaseException) -> dict[str, str]:
    """Return the JSON form of an error: its nearest class in :mod:`edgefl.errors`, its text, and where it was raised.

    >>> error_fields(errors.DataError("no such file"))["error"]
    'DataError'
    """
    where = "\n".join(getattr(error, "__notes__", ())) or "".join(traceback.format_exception(error))
    kind = next((c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c), "")
    at = "" if kind else plugins.blamed(error)
    text = str(error) if kind else f"{at and f'plug-in {at}: '}{type(error).__name__}: {error}"
    return {"error": kind or EdgeflError.__name__, "text": text, "where": where}


def error_of(fields: Mapping[str, str]) -> EdgeflError:
    """Return the error of a JSON form, with a note that says where it was raised.

    >>> error_of(error_fields(errors.UnknownNameError("method", "fedhn", ["fedhm"])))
    UnknownNameError("unknown method 'fedhn'; did you mean 'fedhm'? Known: fedhm")
    """
    kind = getattr(errors, fields["error"], None)
    if not (isinstance(kind, type) and issubclass(kind, EdgeflError)):
        kind = EdgeflError
    error: EdgeflError = kind.__new__(kind, fields["text"])  # some classes make their text from other arguments
    error.add_note(fields["where"])
    return error
