"""Weights that torch has written: a state_dict is read, and anything else is refused with how to convert it."""

import warnings

import pytest
import safetensors.torch
import torch
from torch import nn

from edgefl.errors import WireError
from edgefl.models.weights import checked_weights, weights_in

SAVE = torch.save  # noqa: TID251 - what users have written


def network() -> nn.Sequential:
    torch.manual_seed(0)  # noqa: TID251 - the network's first weights
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


SHAPES = {name: tuple(tensor.shape) for name, tensor in network().state_dict().items() if tensor.is_floating_point()}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "model.", "lit.model.0."])
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_state_dict_is_read_without_the_names_of_wrappers(tmp_path, prefix, legacy, kind):
    state = {f"{prefix}{name}": tensor for name, tensor in network().state_dict().items()}
    path = tmp_path / f"w.{kind}"
    if kind == "pt":
        SAVE(state, path, _use_new_zipfile_serialization=not legacy)
    else:
        safetensors.torch.save_file(state, path)
    found = checked_weights(path, SHAPES)
    of_run = weights_in(str(path), "", SHAPES).tensors()
    for name in SHAPES:
        assert torch.equal(found[name], network().state_dict()[name])
        assert torch.equal(of_run[name], found[name])


def test_a_network_with_a_part_called_module_keeps_its_names(tmp_path):
    whole = nn.Sequential()
    whole.module = network()
    shapes = {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items() if tensor.is_floating_point()}
    SAVE(whole.state_dict(), tmp_path / "w.pt")
    assert checked_weights(tmp_path / "w.pt", shapes).keys() == shapes.keys()


def test_anything_else_is_refused_with_how_to_convert_it(tmp_path):
    path = tmp_path / "w.pt"

    def refused(match: str) -> None:
        with pytest.raises(WireError, match=match):
            checked_weights(path, SHAPES)

    SAVE({"epoch": 3, "model_state": network().state_dict(), "optimizer": {}}, path)
    refused(
        r"holds a checkpoint with epoch, model_state, optimizer, expected a state_dict: torch.save\(torch.load\('w.pt'.*\['model_state'\]"
    )
    SAVE(network(), path)
    refused(
        r"holds more than tensors, or damaged .*expected a state_dict: write one with torch where the network's code is: torch.save"
    )
    with warnings.catch_warnings(action="ignore"):
        torch.jit.script(network()).save(path)
    refused(r"holds a TorchScript program .*torch.jit.load\('w.pt'\).state_dict\(\)")
    SAVE([1, 2], path)
    refused("holds a list, expected a state_dict")
    path.write_bytes(b"PK\3\4" + b"x" * 50)
    refused("holds more than tensors, or damaged")
    path.write_bytes(b"x" * 50)
    refused("not a valid safetensors file")


def test_a_safetensors_file_is_no_pickle_whatever_the_length_of_its_header(tmp_path):
    """Headers of 128 bytes, and of 128 more than a multiple of 256, begin as a pickle does."""
    lengths = set()
    for extra in range(0, 48):
        name, path = "w" * (1 + 8 * extra), tmp_path / "w.safetensors"
        safetensors.torch.save_file({name: torch.zeros(8)}, path)
        lengths.add(path.read_bytes()[0])
        assert checked_weights(path, {name: (8,)})[name].shape == (8,)
    assert 0x80 in lengths
