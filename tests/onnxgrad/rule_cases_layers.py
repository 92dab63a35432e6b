"""Cases of the reader's rules. Products, attention, recurrent layers, normalizations, losses and quantized numbers."""

import numpy as np
from graph_case import IMAGE, MATRIX, POSITIVE, STEPS, X1, conv, ints, norm, numbers, one, recurrent

HEADS = {name: numbers(2, 4, 3, 8, seed=seed) for seed, name in enumerate("qkv")}
FLAT_HEADS = {"q": numbers(2, 3, 16), "k": numbers(2, 3, 8), "v": numbers(2, 3, 6)}
BYTES = {"x": np.random.default_rng(3).integers(0, 256, (3, 6)).astype(np.uint8)}
SIGNED = np.random.default_rng(4).integers(-64, 64, (6, 4)).astype(np.int8)
CASES = {
    "gemm": lambda: one("Gemm", MATRIX, {"w": numbers(5, 6), "b": numbers(5)}, transB=1),
    "gemm scaled": lambda: one("Gemm", MATRIX, {"w": numbers(3, 5), "b": numbers(6, 1)}, transA=1, alpha=0.5, beta=2.0),
    "gemm without bias": lambda: one("Gemm", MATRIX, {"w": numbers(6, 5)}, alpha=0.5),
    "matmul": lambda: one("MatMul", {"x": numbers(2, 3, 4, 6)}, {"w": numbers(6, 5)}),
    "matmul of two": lambda: one("MatMul", {"a": numbers(2, 3, 4), "b": numbers(2, 4, 5)}),
    "einsum": lambda: one("Einsum", {"a": numbers(2, 3, 4), "b": numbers(2, 5, 4)}, equation="bij, bkj -> bik"),
    "attention": lambda: one(
        "Attention", {n: numbers(2, 3, 8, seed=i) for i, n in enumerate("qkv")}, opset=23, q_num_heads=2, kv_num_heads=2
    ),
    "attention grouped, causal": lambda: one(
        "Attention",
        {"q": numbers(2, 4, 3, 8), "k": numbers(2, 2, 3, 8, seed=1), "v": numbers(2, 2, 3, 8, seed=2)},
        opset=23, is_causal=1, scale=0.3,
    ),
    "attention masked": lambda: one(
        "Attention", {n: numbers(2, 4, 3, 8, seed=i) for i, n in enumerate("qkv")} | {"m": numbers(3, 3)}, opset=23
    ),
    "batch norm": lambda: one(
        "BatchNormalization", IMAGE, norm(4) | {"m": numbers(4, seed=3), "v": np.abs(numbers(4)) + 0.5}, epsilon=1e-3
    ),
    "group norm by group": lambda: one("GroupNormalization", IMAGE, norm(2), num_groups=2, opset=18),
    "group norm by channel": lambda: one("GroupNormalization", IMAGE, norm(4), num_groups=2),
    "instance norm": lambda: one("InstanceNormalization", IMAGE, norm(4)),
    "layer norm": lambda: one("LayerNormalization", MATRIX, norm(6)),
    "layer norm broadcast": lambda: one("LayerNormalization", IMAGE, {"s": numbers(8), "b": numbers(8)}, axis=2),
    "layer norm without bias": lambda: one("LayerNormalization", MATRIX, {"s": numbers(6)}, epsilon=0.1),
    "rms norm": lambda: one("RMSNormalization", MATRIX, {"s": numbers(6)}, opset=23),
    "lstm": lambda: one("LSTM", STEPS, recurrent(4, 1), outputs=3, hidden_size=4),
    "lstm both ways": lambda: one("LSTM", STEPS, recurrent(4, 2), outputs=3, hidden_size=4, direction="bidirectional"),
    "lstm with states": lambda: one(
        "LSTM", STEPS, recurrent(4, 1) | {"n": np.array([5, 5], np.int32), "h": numbers(1, 2, 4), "c": numbers(1, 2, 4, seed=1)},
        outputs=3, hidden_size=4,
    ),
    "lstm without bias": lambda: one(
        "LSTM", STEPS, {n: a for n, a in recurrent(4, 1).items() if n != "b"}, outputs=3, hidden_size=4, direction="reverse"
    ),
    "gru": lambda: one("GRU", STEPS, recurrent(3, 1), outputs=2, hidden_size=4),
    "gru late reset": lambda: one(
        "GRU", STEPS, recurrent(3, 2), outputs=2, hidden_size=4, direction="bidirectional", linear_before_reset=1
    ),
    "rnn": lambda: one("RNN", STEPS, recurrent(1, 1), outputs=2, hidden_size=4),
    "rnn relu": lambda: one("RNN", STEPS, recurrent(1, 1), outputs=2, hidden_size=4, activations=["Relu"]),
    "matmul of vectors": lambda: one("MatMul", {"a": numbers(3), "b": numbers(3, seed=8)}),
    "det": lambda: one("Det", {"x": numbers(2, 3, 3)}),
    "attention with a mask and rows without a key": lambda: one(
        "Attention", HEADS | {"m": np.array([[0, 0, 0], [1, 0, 1], [1, 1, 1]], bool)}, opset=23
    ),
    "attention, causal, with a mask that hides the first key": lambda: one(
        "Attention", HEADS | {"m": np.array([[0, 1, 1]] * 3, bool)}, opset=23, is_causal=1
    ),
    "attention with infinite scores": lambda: one(
        "Attention", HEADS | {"m": np.array([[-np.inf] * 3, [0, -np.inf, 0], [0, 0, 0]], np.float32)}, opset=23
    ),
    "attention with a cache": lambda: one(
        "Attention", HEADS | {"m": numbers(3, 5), "pk": numbers(2, 4, 2, 8, seed=6), "pv": numbers(2, 4, 2, 8, seed=7)},
        outputs=3, opset=23, is_causal=1, softcap=2.0,
    ),
    "attention's scores": lambda: one("Attention", HEADS, outputs=4, opset=24, qk_matmul_output_mode=0),
    "attention's shares": lambda: one("Attention", HEADS, outputs=4, opset=24, qk_matmul_output_mode=3, softmax_precision=1),
    "attention with lengths": lambda: one(
        "Attention", HEADS | {"n": ints(2, 3)}, order=["q", "k", "v", "", "", "", "n"], opset=24, is_causal=1
    ),
    "attention in a window": lambda: one("Attention", HEADS, opset=25, left_window_size=1, right_window_size=0),
    "linear attention": lambda: one(
        "LinearAttention", {**FLAT_HEADS, "s": numbers(2, 2, 4, 3)}, outputs=2, opset=27, q_num_heads=4, kv_num_heads=2,
        update_rule="linear",
    ),
    "linear attention, gated delta": lambda: one(
        "LinearAttention", {**FLAT_HEADS, "d": -np.abs(numbers(2, 3, 8, seed=2)), "b": np.abs(numbers(2, 3, 2, seed=3))},
        order=["q", "k", "v", "", "d", "b"], outputs=2, opset=27, q_num_heads=4, kv_num_heads=2, scale=0.5,
    ),
    "causal convolution": lambda: one("CausalConvWithState", {"x": X1}, conv(4, 1, 3, bias=4), outputs=2, opset=27, activation="silu"),
    "causal convolution with a state": lambda: one(
        "CausalConvWithState", {"x": X1, "s": numbers(2, 4, 2)}, conv(4, 1, 3), order=["x", "w", "", "s"], outputs=2, opset=27
    ),
    "rotary embedding": lambda: one(
        "RotaryEmbedding", {"x": numbers(2, 4, 3, 8), "p": np.array([[0, 1, 2], [3, 4, 5]])},
        {"c": np.cos(numbers(6, 4)), "s": np.sin(numbers(6, 4))}, order=["x", "c", "s", "p"], opset=23,
    ),
    "rotary embedding of pairs": lambda: one(
        "RotaryEmbedding", {"x": numbers(2, 3, 16), "c": np.cos(numbers(2, 3, 2)), "s": np.sin(numbers(2, 3, 2))},
        opset=23, num_heads=2, rotary_embedding_dim=4, interleaved=1,
    ),
    "layer norm's statistics": lambda: one("LayerNormalization", {"x": numbers(2, 3, 4)}, norm(4), outputs=3),
    "lrn": lambda: one("LRN", IMAGE, size=3, alpha=0.5, beta=0.6, bias=2.0),
    "l1 normalization": lambda: one("LpNormalization", MATRIX, p=1, axis=0),
    "l2 normalization": lambda: one("LpNormalization", MATRIX),
    "mean and variance": lambda: one("MeanVarianceNormalization", IMAGE, axes=[0, 2, 3]),
    "nll": lambda: one("NegativeLogLikelihoodLoss", {"x": numbers(3, 6), "t": ints(0, 5, 2)}, {"w": POSITIVE["x"][0]}),
    "nll ignored": lambda: one(
        "NegativeLogLikelihoodLoss", {"x": numbers(2, 4, 3), "t": np.array([[0, 1, 3], [2, 2, 1]])}, reduction="none", ignore_index=1
    ),
    "cross entropy": lambda: one("SoftmaxCrossEntropyLoss", {"x": numbers(3, 6), "t": ints(0, 5, 2)}, outputs=2, reduction="sum"),
    "quantize": lambda: one("QuantizeLinear", MATRIX, {"s": np.float32(0.02), "z": np.int8(3)}),
    "quantize channels": lambda: one("QuantizeLinear", IMAGE, {"s": np.abs(numbers(4)) / 9, "z": np.uint8([0, 9, 128, 255])}),
    "quantize by default": lambda: one("QuantizeLinear", MATRIX, {"s": np.float32(0.02)}),
    "dequantize": lambda: one("DequantizeLinear", BYTES, {"s": np.float32(0.02), "z": np.uint8(3)}),
    "dequantize channels": lambda: one("DequantizeLinear", BYTES, {"s": np.abs(numbers(6)), "z": np.uint8([*range(6)])}, axis=-1),
    "dequantize blocks": lambda: one("DequantizeLinear", BYTES, {"s": np.abs(numbers(3, 2))}, axis=1, block_size=3),
    "dynamic quantize": lambda: one("DynamicQuantizeLinear", MATRIX, outputs=3),
    "matmul of integers": lambda: one(
        "MatMulInteger", BYTES, {"w": SIGNED, "zx": np.uint8(7), "zw": np.int8([1, 2, 3, 4])}
    ),
    "conv of integers": lambda: one(
        "ConvInteger", {"x": BYTES["x"].reshape(1, 1, 3, 6)}, {"w": SIGNED.view(np.uint8).reshape(2, 1, 3, 4), "z": np.uint8(7)}
    ),
    "quantized matmul": lambda: one(
        "QLinearMatMul", BYTES,
        {"sx": np.float32(0.1), "zx": np.uint8(7), "w": SIGNED.view(np.uint8), "sw": np.float32(0.02), "zw": np.uint8(1),
         "s": np.float32(0.7), "z": np.uint8(100)},
    ),
    "quantized conv": lambda: one(
        "QLinearConv", {"x": BYTES["x"].reshape(1, 1, 3, 6)},
        {"sx": np.float32(0.1), "zx": np.uint8(7), "w": SIGNED.view(np.uint8).reshape(2, 1, 3, 4), "sw": np.float32([0.02, 0.01]),
         "zw": np.uint8([1, 1]), "s": np.float32(0.7), "z": np.uint8(100), "b": np.int32([5, -5])},
        pads=[1, 0, 1, 1],
    ),
}  # fmt: skip
