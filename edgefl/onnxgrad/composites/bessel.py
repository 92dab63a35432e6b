"""The modified Bessel functions of the first kind I₀ and I₁, also scaled by exp(−|x|)."""

from edgefl.onnxgrad.composites.formula import Formula
from edgefl.onnxgrad.gradients.op import Op, form
from edgefl.onnxgrad.gradients.tape import Tape

_BORDER = 8
# Polynomials interpolated at Chebyshev's points. By order: exp(−x) I₀(x) and exp(−x) I₁(x)/x in x/4 − 1 for 0 ≤ x ≤ 8, with a relative
# error of 3e-9, and exp(−x) √x I(x) in 16/x − 1 for x ≥ 8, with one of 2e-10.
_SMALL = (
    (
        *(0.207001921224, -0.1130043361086, 0.09451563189404, -0.08904288918685, 0.08734321532506, -0.08497304959218),
        *(0.07927874419259, -0.06946451491679, 0.05674911080944, -0.04331379373108, 0.03029740864585, -0.01886512588206),
        *(0.01166163384661, -0.008009849729506, 0.004062653885632, -0.000759696653691, 0.0004696247328627),
        *(-0.00085085271626, 0.0003359461727661),
    ),
    (
        *(0.04468770987559, -0.06112433922218, 0.0680576003201, -0.06848253478907, 0.06376737911898, -0.05528129039986),
        *(0.04467500363816, -0.03366142388298, 0.02368259370101, -0.01561382966639, 0.009598630817271, -0.005428314595832),
        *(0.002969058917816, -0.001697630440659, 0.0007994664927142, -0.0002031783126971, 0.000100479857936),
        *(-0.0001235527885886, 4.598306682773e-05),
    ),
)
_LARGE = (
    (
        *(0.402176509406, 0.003360552031444, 0.0001362174078389, 1.114154219173e-05, 1.475475641829e-06),
        *(3.038330889105e-07, 1.091023255836e-07, 3.363580347582e-08),
    ),
    (
        *(0.3893984590725, -0.009749577241403, -0.0002192373853679, -1.503704714467e-05, -1.82500693259e-06),
        *(-3.548195430803e-07, -1.231842009786e-07, -3.785602409323e-08),
    ),
)


@form("BesselI")
def bessel_i(tape: Tape, op: Op) -> None:
    """The function of the attribute ``order``, 0 or 1; if ``scaled`` is 1, times exp(−|x|)."""
    order, x = int(op.get("order")), Formula.of(tape, op.inputs[0])
    size = x.abs()
    small = (size.op("Min", float(_BORDER)) * 0.25 - 1).polynomial(_SMALL[order])
    above = size.op("Max", float(_BORDER))
    large = (2 * _BORDER / above - 1).polynomial(_LARGE[order]) / above.sqrt()
    if order:
        small, large = small * x, large * x.op("Sign")
    found = (size < _BORDER).where(small, large)
    (found if op.get("scaled") else found * size.exp()).result(op.outputs[0])
