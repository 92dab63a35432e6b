"""A differentiated graph is the same in every process, whatever order Python's sets have there."""

import os
import subprocess
import sys

GRAPH = """

from onnx.parser import parse_model
from edgefl.onnxgrad.autodiff import append_gradients, tape_of
names = [f"w{i}" for i in range(9)]
given = ", ".join(f"float[2] {name}" for name in names)
body = f"s = Sum ({', '.join(names)}) y = ReduceSumSquare <keepdims = 0> (s)"
model = parse_model(f'<ir_version: 9, opset_import: ["": 20]> g ({given}) => (float y) {{ {body} }}')
tape, order = tape_of(model), []
append_gradients(tape, "y", names, lambda name, gradient: order.append(name))
print(order)
"""


def test_gradients_are_complete_in_one_order_for_every_hash_seed():
    orders = set()
    for seed in ("1", "2", "3"):
        ran = subprocess.run(
            [sys.executable, "-c", GRAPH], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        orders.add(ran.stdout)
    assert orders == {f"{[f'w{i}' for i in range(9)]}\n"}
