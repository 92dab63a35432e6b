"""Cases of the reader's rules. Operators that move, read and write values by their place, and transforms."""

import numpy as np
from graph_case import IMAGE, MATRIX, PAIR, STEPS, TOKENS, ints, numbers, one
from onnx import TensorProto

CASES = {
    "gather rows": lambda: one("Gather", TOKENS, {"w": numbers(5, 4)}, order=["w", "x"]),
    "gather axis": lambda: one("Gather", IMAGE, {"i": ints(0, -1)}, axis=2),
    "gather one": lambda: one("Gather", IMAGE, {"i": np.array(-1)}, axis=1),
    "gather elements": lambda: one("GatherElements", {"x": numbers(2, 3), "i": TOKENS["x"] % 2 - 1}, axis=1),
    "scatter": lambda: one("ScatterND", MATRIX, {"i": np.array([[0], [2]]), "u": numbers(2, 6)}),
    "scatter add": lambda: one("ScatterND", MATRIX, {"i": np.array([[0], [0]]), "u": numbers(2, 6)}, reduction="add"),
    "scatter elements": lambda: one("ScatterElements", MATRIX, {"i": np.array([[0, -1]]), "u": numbers(1, 2)}, axis=1),
    "reshape": lambda: one("Reshape", IMAGE, {"s": ints(0, -1, 4)}),
    "flatten": lambda: one("Flatten", IMAGE, axis=2),
    "flatten all": lambda: one("Flatten", IMAGE, axis=0),
    "transpose": lambda: one("Transpose", IMAGE, perm=[0, 3, 1, 2]),
    "transpose reversed": lambda: one("Transpose", IMAGE),
    "slice": lambda: one("Slice", IMAGE, {"s": ints(1, -3), "e": ints(2**62, -1), "a": ints(2, -1), "p": ints(2, 1)}),
    "slice backwards": lambda: one("Slice", IMAGE, {"s": ints(-1), "e": ints(-(2**62)), "a": ints(2), "p": ints(-2)}),
    "slice of nothing": lambda: one("Slice", IMAGE, {"s": ints(0, 5), "e": ints(2, 3)}),
    "concat": lambda: one("Concat", PAIR, {"w": numbers(3, 2)}, axis=1),
    "split": lambda: one("Split", IMAGE, {"s": ints(1, 3)}, outputs=2, axis=1),
    "split evenly": lambda: one("Split", IMAGE, outputs=3, axis=2, num_outputs=3),
    "split unevenly": lambda: one("Split", IMAGE, outputs=3, axis=3, num_outputs=3),
    "split by outputs": lambda: one("Split", IMAGE, outputs=2, axis=3, opset=13),
    "pad": lambda: one("Pad", IMAGE, {"p": ints(0, 0, 1, 0, 0, 0, 2, -1), "v": np.float32(1.5)}),
    "pad axes": lambda: one("Pad", IMAGE, {"p": ints(1, 2), "a": ints(-1)}, order=["x", "p", "", "a"]),
    "pad reflect": lambda: one("Pad", IMAGE, {"p": ints(0, 0, 1, 2, 0, 0, 2, 0)}, mode="reflect"),
    "pad edge": lambda: one("Pad", IMAGE, {"p": ints(0, 1, 1, 2, 0, 0, 2, 0)}, mode="edge"),
    "pad wrap": lambda: one("Pad", IMAGE, {"p": ints(0, 0, 1, 2, 0, 0, 2, 0)}, mode="wrap"),
    "expand": lambda: one("Expand", {"x": numbers(3, 1, 6)}, {"s": ints(2, 1, 4, 1)}),
    "tile": lambda: one("Tile", MATRIX, {"r": ints(2, 3)}),
    "squeeze": lambda: one("Squeeze", {"x": numbers(3, 1, 6, 1)}, {"a": ints(1, -1)}),
    "unsqueeze": lambda: one("Unsqueeze", MATRIX, {"a": ints(-1, 0)}),
    "shape": lambda: one("Shape", IMAGE, start=1, end=-1),
    "size": lambda: one("Size", IMAGE),
    "trilu": lambda: one("Trilu", MATRIX, {"k": np.array(1)}, upper=0),
    "trilu upper": lambda: one("Trilu", MATRIX),
    "depth to space": lambda: one("DepthToSpace", IMAGE, blocksize=2),
    "depth to space columns": lambda: one("DepthToSpace", IMAGE, blocksize=2, mode="CRD"),
    "space to depth": lambda: one("SpaceToDepth", {"x": numbers(2, 3, 4, 6)}, blocksize=2),
    "space to depth columns": lambda: one("SpaceToDepth", {"x": numbers(2, 3, 4, 6)}, opset=28, blocksize=2, mode="CRD"),
    "crop and pad": lambda: one("CenterCropPad", IMAGE, {"s": ints(12, 3)}, axes=[2, -1]),
    "gather nd": lambda: one("GatherND", IMAGE, {"i": np.array([[0, 1], [-1, 3]])}),
    "gather nd of batches": lambda: one("GatherND", {"x": numbers(2, 3, 4), "i": np.array([[[1], [0]], [[2], [-1]]])}, batch_dims=1),
    "scatter of products": lambda: one("ScatterND", MATRIX, {"i": np.array([[0], [0], [2]]), "u": numbers(3, 6)}, reduction="mul"),
    "scatter of maxima": lambda: one(
        "ScatterND", IMAGE, {"i": np.array([[0, 1], [0, -3]]), "u": numbers(2, 9, 8)}, reduction="max"
    ),
    "scatter elements added": lambda: one(
        "ScatterElements", MATRIX, {"i": np.array([[0, -1], [0, 1]]), "u": numbers(2, 2)}, axis=1, reduction="add"
    ),
    "scatter elements of minima": lambda: one(
        "ScatterElements", MATRIX, {"i": np.array([[0, -1], [0, 1]]), "u": numbers(2, 2)}, axis=1, reduction="min"
    ),
    "write to a cache": lambda: one(
        "TensorScatter", {"x": numbers(2, 4, 3), "u": numbers(2, 2, 3, seed=2), "i": ints(1, 3)}, opset=24, mode="circular"
    ),
    "reversed sequences": lambda: one("ReverseSequence", STEPS, {"n": ints(2, 5)}),
    "one hot": lambda: one("OneHot", TOKENS, {"d": ints(5), "v": np.float32([-1, 2])}, axis=1),
    "eye like": lambda: one("EyeLike", {"x": numbers(3, 3)}, k=1, dtype=TensorProto.INT64),
    "compress": lambda: one("Compress", IMAGE, {"c": np.array([True, False, True])}, axis=1),
    "dft": lambda: one("DFT", {"x": numbers(2, 8, 1)}, opset=20),
    "dft one-sided": lambda: one("DFT", {"x": numbers(2, 8, 1)}, {"n": np.array(6)}, opset=20, onesided=1),
    "dft inverse": lambda: one("DFT", {"x": numbers(2, 8, 3, 2)}, {"a": np.array(1)}, order=["x", "", "a"], opset=20, inverse=1),
    "dft by attribute": lambda: one("DFT", {"x": numbers(2, 8, 3, 1)}, opset=17, axis=2),
    "stft": lambda: one("STFT", {"x": numbers(2, 32, 1)}, {"s": np.array(6), "w": np.abs(numbers(8))}),
    "stft whole": lambda: one(
        "STFT", {"x": numbers(2, 32, 1)}, {"s": np.array(6), "n": np.array(8)}, order=["x", "s", "", "n"], onesided=0
    ),
    "columns to image": lambda: one("Col2Im", {"x": numbers(2, 8, 12)}, {"s": ints(4, 5), "b": ints(2, 2)}),
}  # fmt: skip
