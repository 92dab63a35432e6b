"""A tier's inference for other runtimes than onnxruntime: converted, and compared with torch on the tier's reference."""

from collections.abc import Sequence

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor, nn

from edgefl.bundle.manifest_records import OtherFormat
from edgefl.bundle.tier_check import allowed_error
from edgefl.errors import BundleError, EdgeflError, first_line
from edgefl.onnxgrad.contexts import quiet
from edgefl.registry import export_formats
from edgefl.util.silence import silent


def check_formats(names: Sequence[str]) -> None:
    """Raise InputError if one of ``names`` is no export format, or what it needs is not installed."""
    for name in names:
        export_formats.check_installed(name, f"--also {name}")


class _Positional(nn.Module):
    """A network that takes its inputs one by one instead of by name, and returns rows; ``names`` is empty if it has one input."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.names = network, list(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(dict(zip(self.names, inputs, strict=True)) if self.names else inputs[0])
        return outputs.flatten(1) if outputs.dim() > 2 else outputs


def other_formats(
    names: Sequence[str], network: nn.Module, label: str, reference: bytes
) -> tuple[tuple[OtherFormat, ...], dict[str, bytes]]:
    """Convert a tier's network to each of the formats ``names``; return their entries in the manifest, and path → content.

    Args:
        names: export formats, which :func:`check_formats` knows.
        network: in evaluation mode.
        label: of the tier.
        reference: the tier's reference, a safetensors file; every sample is run by itself.

    Raises:
        EdgeflError: a converter does not take the network.
        BundleError: the file computes something else than torch.
    """
    stored = safetensors.numpy.load(reference)
    expected = stored.pop("logits")
    inputs = tuple(sorted(stored))
    arguments = () if inputs == ("x",) else [name.removeprefix("x.") for name in inputs]
    samples = [tuple(stored[name][i : i + 1] for name in inputs) for i in range(len(expected))]
    entries, contents = [], {}
    for name in names:
        try:
            with silent(), quiet():
                example = tuple(map(torch.from_numpy, samples[0]))
                converted = export_formats.load(name)(_Positional(network, arguments).eval(), example)
                outputs = np.concatenate([converted.run(sample) for sample in samples])
        except Exception as error:  # converters raise many types
            raise EdgeflError(
                f"tier {label}: {name} does not take the network: {first_line(error)}; leave out --also {name}"
            ) from error
        difference = float(np.abs(outputs - expected).max()) if outputs.shape == expected.shape else float("inf")
        if not difference <= (allowed := allowed_error(expected)):
            most = f"expected at most {allowed:.0e}"
            raise BundleError(f"tier {label}: {name} differs from torch by {difference:.2e}, {most}; leave out --also {name}")
        path = f"{label}/forward{export_formats.facts(name)['suffix']}"
        contents[path] = converted.content
        entries.append(
            OtherFormat(
                tier=label,
                format=name,
                file=path,
                bytes=len(converted.content),
                inputs=inputs,
                made_with=converted.made_with,
                parity_max_abs_error=difference,
            )
        )
    return tuple(entries), contents
