"""LiteRT, formerly TensorFlow Lite: Google's runtime for phones. A file has one signature; its inputs are ``args_0`` and so on."""

from importlib.metadata import version

from torch import Tensor, nn

from edgefl.bundle.formats.contract import Array, Converted
from edgefl.registry import export_format
from edgefl.util.scratch import scratch_folder


@export_format("litert", needs="litert_torch", extra="edgefl-sim[litert]", suffix=".tflite")
def litert(network: nn.Module, sample: tuple[Tensor, ...]) -> Converted:
    """Return the network as a LiteRT model with one signature."""
    import litert_torch
    from ai_edge_litert.interpreter import Interpreter

    model = litert_torch.convert(network, sample)
    with scratch_folder() as folder:
        path = folder / "forward.tflite"
        model.export(str(path))
        content = path.read_bytes()
    interpreter = Interpreter(model_content=content, num_threads=1)
    signature = interpreter.get_signature_runner()
    types = {name: about["dtype"] for name, about in signature.get_input_details().items()}  # int32 for int64

    def run(inputs: tuple[Array, ...]) -> Array:
        named = {f"args_{number}": x for number, x in enumerate(inputs)}
        (output,) = signature(**{name: x.astype(types[name]) for name, x in named.items()}).values()
        return output

    return Converted(content, run, f"litert-torch {version('litert-torch')}")
