"""Cases of the reader's rules. Convolutions, pools, resizing and sampling of maps."""

import numpy as np
from graph_case import IMAGE, X1, X2, X3, conv, ints, numbers, one

GRID = {"x": X2, "g": numbers(2, 5, 6, 2)}
CASES = {
    "conv1": lambda: one("Conv", {"x": X1}, conv(6, 4, 3, bias=6), strides=[2], pads=[1, 1]),
    "conv2": lambda: one("Conv", IMAGE, conv(6, 4, 3, 3), pads=[1, 1, 1, 1]),
    "conv2 grouped and dilated": lambda: one("Conv", IMAGE, conv(6, 2, 3, 2, bias=6), group=2, dilations=[2, 1], strides=[1, 2]),
    "conv2 asymmetric pads": lambda: one("Conv", IMAGE, conv(6, 4, 3, 3, bias=6), pads=[0, 1, 2, 0]),
    "conv2 same upper": lambda: one("Conv", IMAGE, conv(6, 4, 3, 4, bias=6), auto_pad="SAME_UPPER", strides=[2, 2]),
    "conv2 same lower": lambda: one("Conv", IMAGE, conv(6, 4, 2, 4), auto_pad="SAME_LOWER", strides=[1, 3]),
    "conv2 valid": lambda: one("Conv", IMAGE, conv(6, 4, 3, 3), auto_pad="VALID"),
    "conv3": lambda: one("Conv", {"x": X3}, conv(6, 4, 3, 3, 3, bias=6), pads=[1] * 6, strides=[1, 2, 2]),
    "transposed1": lambda: one("ConvTranspose", {"x": X1}, conv(4, 6, 3, bias=6), strides=[2], pads=[1, 1], output_padding=[1]),
    "transposed2": lambda: one("ConvTranspose", IMAGE, conv(4, 3, 2, 2), strides=[2, 2], group=2),
    "transposed2 asymmetric": lambda: one("ConvTranspose", IMAGE, conv(4, 3, 3, 3, bias=3), strides=[2, 1], pads=[0, 1, 1, 0]),
    "transposed2 shape": lambda: one(
        "ConvTranspose", IMAGE, conv(4, 3, 3, 3, bias=3), strides=[2, 2], output_shape=[18, 16], auto_pad="SAME_UPPER"
    ),
    "transposed3": lambda: one("ConvTranspose", {"x": X3}, conv(4, 2, 2, 2, 2), dilations=[2, 1, 1]),
    "max pool1": lambda: one("MaxPool", {"x": X1}, kernel_shape=[3], strides=[2], pads=[1, 1]),
    "max pool2 dilated": lambda: one("MaxPool", IMAGE, kernel_shape=[3, 2], dilations=[2, 1]),
    "max pool2 same": lambda: one("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    "max pool2 ceil": lambda: one("MaxPool", IMAGE, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    "max pool3": lambda: one("MaxPool", {"x": X3}, kernel_shape=[2, 2, 2]),
    "average pool1": lambda: one("AveragePool", {"x": X1}, kernel_shape=[3], strides=[2], pads=[1, 1]),
    "average pool2 whole": lambda: one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
    "average pool2 asymmetric": lambda: one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[0, 1, 2, 0]),
    "average pool2 asymmetric whole": lambda: one(
        "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[0, 1, 2, 0], count_include_pad=1
    ),
    "average pool3": lambda: one("AveragePool", {"x": X3}, kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    "global average": lambda: one("GlobalAveragePool", {"x": X3}),
    "global max": lambda: one("GlobalMaxPool", IMAGE),
    "deformable conv": lambda: one(
        "DeformConv", {"x": X2, "o": numbers(2, 2 * 2 * 4, 9, 8)}, conv(6, 2, 2, 2, bias=6), order=["x", "w", "o", "b"],
        group=2, offset_group=2, pads=[1, 1, 0, 0],
    ),
    "deformable conv masked": lambda: one(
        "DeformConv", {"x": X2, "o": numbers(2, 8, 4, 4), "m": numbers(2, 4, 4, 4)}, conv(6, 4, 2, 2), order=["x", "w", "o", "", "m"],
        strides=[2, 2], dilations=[2, 1],
    ),
    "max pool's places": lambda: one("MaxPool", IMAGE, outputs=2, kernel_shape=[2, 3], pads=[1, 1, 1, 1]),
    "max unpool": lambda: one(
        "MaxUnpool", {"x": numbers(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]])}, {"s": ints(1, 1, 4, 4)},
        kernel_shape=[2, 2], strides=[2, 2],
    ),
    "average pool dilated": lambda: one(
        "AveragePool", IMAGE, kernel_shape=[3, 2], dilations=[2, 1], pads=[1, 1, 1, 0], ceil_mode=1, strides=[2, 2]
    ),
    "average pool dilated whole": lambda: one(
        "AveragePool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2], pads=[1] * 4, count_include_pad=1
    ),
    "lp pool": lambda: one("LpPool", IMAGE, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1], p=3),
    "global lp": lambda: one("GlobalLpPool", IMAGE),
    "resize cubic": lambda: one("Resize", IMAGE, {"s": ints(2, 4, 5, 13)}, order=["x", "", "", "s"], mode="cubic"),
    "resize cubic without outside": lambda: one(
        "Resize", IMAGE, {"s": ints(2, 4, 5, 13)}, order=["x", "", "", "s"], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5
    ),
    "resize antialias": lambda: one("Resize", IMAGE, {"s": ints(2, 4, 4, 3)}, order=["x", "", "", "s"], mode="linear", antialias=1),
    "resize cubic antialias": lambda: one("Resize", IMAGE, {"s": ints(2, 4, 4, 3)}, order=["x", "", "", "s"], mode="cubic", antialias=1),
    "resize symmetric": lambda: one(
        "Resize", IMAGE, {"s": np.array([1, 1, 0.6, 1.3], np.float32)}, order=["x", "", "s"], mode="linear",
        coordinate_transformation_mode="half_pixel_symmetric",
    ),
    "resize crop": lambda: one(
        "Resize", IMAGE, {"r": np.array([0, 0, 0.2, -0.1, 1, 1, 0.7, 0.9], np.float32), "s": ints(2, 4, 5, 6)},
        order=["x", "r", "", "s"], mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.0,
    ),
    "resize not larger": lambda: one(
        "Resize", IMAGE, {"s": ints(20, 10)}, order=["x", "", "", "s"], axes=[2, 3], keep_aspect_ratio_policy="not_larger"
    ),
    "resize not smaller": lambda: one(
        "Resize", IMAGE, {"s": ints(20, 10)}, order=["x", "", "", "s"], axes=[2, 3], keep_aspect_ratio_policy="not_smaller"
    ),
    "grid sample": lambda: one("GridSample", GRID, opset=20),
    "grid sample nearest": lambda: one("GridSample", GRID, opset=20, mode="nearest", padding_mode="border"),
    "grid sample cubic": lambda: one("GridSample", GRID, opset=20, mode="cubic", padding_mode="reflection", align_corners=1),
    "grid sample of volumes": lambda: one("GridSample", {"x": X3, "g": numbers(2, 2, 3, 4, 3)}, opset=20),
    "affine grid": lambda: one("AffineGrid", {"t": numbers(2, 2, 3)}, {"s": ints(2, 4, 5, 6)}, opset=20),
}  # fmt: skip
for mode in ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]:
    for kind in ["nearest", "linear"]:
        CASES[f"resize {kind} {mode}"] = lambda mode=mode, kind=kind: one(
            "Resize", IMAGE, {"s": np.array([1, 1, 2, 0.5 if mode == "align_corners" else 0.7], np.float32)}, order=["x", "", "s"],
            mode=kind, coordinate_transformation_mode=mode,
        )  # fmt: skip
for rounding in ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]:
    CASES[f"resize {rounding}"] = lambda rounding=rounding: one(
        "Resize", IMAGE, {"s": ints(2, 4, 13, 5)}, order=["x", "", "", "s"], nearest_mode=rounding
    )
CASES["resize axes"] = lambda: one("Resize", IMAGE, {"s": ints(13, 5)}, order=["x", "", "", "s"], axes=[2, 3], mode="linear")
