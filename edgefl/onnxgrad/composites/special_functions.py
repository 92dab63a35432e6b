"""The gamma function's logarithm and derivatives, Bessel functions, functions of the normal distribution, and the hypotenuse.

The computation is in float64, in which differences of large terms near zeros of the functions keep all digits of float32. ONNX has no erf
of that type, but its scaled complement has a short polynomial. log Γ and its derivatives are Stirling's series after a shift of the
argument, and for negative arguments a reflection.
"""

import math
from typing import Any

from edgefl.onnxgrad.gradients.formula import Double
from edgefl.onnxgrad.gradients.op import Op, form
from edgefl.onnxgrad.gradients.tape import Tape

_BERNOULLI = 1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730
"""The Bernoulli numbers B₂, B₄, …"""
_SHIFT = 7
"""Stirling's series is used from here on."""
_LARGEST = 1e300


@form("Lgamma")
def lgamma(tape: Tape, op: Op) -> None:
    """For x > 0, log Γ(x) = log Γ(x + n) − log x(x + 1)…; else log |Γ(x)| = log |π / (x sin πx)| − log Γ(−x)."""
    x = Double.of(tape, op.inputs[0])
    size = x.abs()
    product: Any = size
    for step in range(1, _SHIFT):
        product = product * (size + step)
    y = size + _SHIFT
    over = 1 / y
    series = (over * over).polynomial([b / ((2 * j) * (2 * j - 1)) for j, b in enumerate(_BERNOULLI, 1)]) * over
    positive = (y - 0.5) * y.log() - y + (math.log(2 * math.pi) / 2 + series) - product.log()
    beside = x - x.op("Round")
    negative = (math.pi / (size * (math.pi * beside).op("Sin").abs())).log() - positive
    found = (x < 0).where(negative, positive)
    (size > _LARGEST).where(math.inf, found).result(op.outputs[0])


@form("Polygamma")
def polygamma(tape: Tape, op: Op) -> None:
    """The derivative ψₙ of order n + 1 of log Γ; for x < 0 by ψₙ(x) = (−1)ⁿ ψₙ(1 − x) − (π cot πx)⁽ⁿ⁾."""
    order = int(op.get("order"))
    x = Double.of(tape, op.inputs[0])
    below = x < 0
    positive = _of_positive(below.where(1 - x, x.abs() if order else x), order)  # torch tells 0 from −0 in ψ alone
    beside = x - x.op("Round")
    angle = math.pi * beside
    cotangent = angle.op("Cos") / angle.op("Sin")  # onnxruntime has no tangent in float64
    mirrored = -positive if order % 2 else positive
    negative = mirrored - cotangent.polynomial(_derivative_of_cotangent(order))
    if order == 0:  # as torch, whose other derivatives are infinite there
        negative = beside.op("Equal", 0.0).where(math.nan, negative)
    below.where(negative, positive).result(op.outputs[0])


def _of_positive(x: Double, order: int) -> Double:
    """Return ψ for x ≥ 0: the terms of x, x + 1, …, and the series of Euler and Maclaurin for the rest."""
    shift, power = _SHIFT + order, order + 1
    terms = [1 / (x + step if step else x) for step in range(shift)]
    head = sum((_power(term, power) for term in terms[1:]), _power(terms[0], power))
    y = x + shift
    over = 1 / y
    squares = over * over
    if order == 0:
        series = squares.polynomial([b / (2 * j) for j, b in enumerate(_BERNOULLI, 1)]) * squares
        return y.log() - over * 0.5 - series - head
    rising = [math.prod(range(power, power + 2 * j - 1)) / math.factorial(2 * j) for j in range(1, len(_BERNOULLI) + 1)]
    series = squares.polynomial([b * factor for b, factor in zip(_BERNOULLI, rising, strict=True)]) * squares
    rest = _power(over, order) * (1 / order + over * 0.5 + series)
    return (head + rest) * (math.factorial(order) * (-1 if order % 2 == 0 else 1))


def _power(x: Double, exponent: int) -> Double:
    return x if exponent == 1 else x.op("Pow", exponent)


def _derivative_of_cotangent(order: int) -> list[float]:
    """Return the polynomial in cot πx, lowest power first, that is the derivative of π cot πx."""
    found = [0.0, math.pi]
    for _ in range(order):  # the derivative of cⁿ is −π n cⁿ⁻¹ (1 + c²)
        slope = [-math.pi * power * factor for power, factor in enumerate(found)][1:]
        found = [a + b for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope], strict=True)]
    return found


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
    order, x = int(op.get("order")), Double.of(tape, op.inputs[0])
    size = x.abs()
    small = (size.op("Min", float(_BORDER)) * 0.25 - 1).polynomial(_SMALL[order])
    above = size.op("Max", float(_BORDER))
    large = (2 * _BORDER / above - 1).polynomial(_LARGE[order]) / above.sqrt()
    if order:
        small, large = small * x, large * x.op("Sign")
    found = (size < _BORDER).where(small, large)
    (found if op.get("scaled") else found * size.exp()).result(op.outputs[0])


# (1 + x)·erfcx(x) for x ≥ 0 as a polynomial in (x − 3) / (x + 3), interpolated at Chebyshev's points; relative error 8e-11.
_SCALED_COMPLEMENT = (
    *(0.7160046047256, -0.2309273323274, 0.09902075365937, -0.01023541727858, -0.02380391236896, 0.02195807427039),
    *(-0.009750697031293, 0.001617059131813, 0.0006458487901883, -0.0003634574751857, -2.062569713009e-05, 5.075884128019e-05),
    *(-1.446147916795e-06, -4.893430984036e-06, 2.658457257591e-07),
)
# Wichura, "Algorithm AS 241: The percentage points of the normal distribution", Applied Statistics 37 (1988), PPND16: the quantile is a
# quotient of polynomials in .180625 − q², times q = p − 1/2, for |q| ≤ .425, else in r − 1.6 or r − 5 with r = √(−log min(p, 1 − p)).
_CENTRE = (
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4),
        *(4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
    ),
)
_MIDDLE = (
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0),
        *(1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    ),
)
_TAIL = (
    (
        *(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1),
        *(2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
    ),
)
_NEAR, _FAR = 0.425, 5.0


@form("Ndtri")
def ndtri(tape: Tape, op: Op) -> None:
    """The x below which a standard normal value is with probability p; infinite at 0 and 1, NaN outside."""
    p = Double.of(tape, op.inputs[0])
    _quantile(p - 0.5, (p < 0.5).where(p, 1 - p)).result(op.outputs[0])


@form("Erfinv")
def erfinv(tape: Tape, op: Op) -> None:
    """The quantile at (1 + x) / 2, divided by √2."""
    x = Double.of(tape, op.inputs[0])
    (_quantile(x * 0.5, (1 - x.abs()) * 0.5) * math.sqrt(0.5)).result(op.outputs[0])


def _quantile(q: Double, least: Double) -> Double:
    """Return the quantile at 1/2 + ``q``; ``least`` is 1/2 − |q|."""
    near = (q.abs() < _NEAR).where(_NEAR**2 - q * q, 0)
    r = (-least.log()).sqrt()
    tail = (r < _FAR).where(_quotient((r < _FAR).where(r - 1.6, 0), _MIDDLE), _quotient(r - _FAR, _TAIL))
    tail = least.op("Equal", 0.0).where(math.inf, tail)
    return (q.abs() < _NEAR).where(q * _quotient(near, _CENTRE), (q < 0).where(-tail, tail))


def _quotient(x: Double, both: tuple[tuple[float, ...], tuple[float, ...]]) -> Double:
    above, below = both
    return x.polynomial(above) / x.polynomial(below)


def _scaled_complement(x: Double) -> Double:
    """Return exp(x²)·erfc(x) for x ≥ 0."""
    return (1 - 6 / (x + 3)).polynomial(_SCALED_COMPLEMENT) / (x + 1)


@form("Erfcx")
def erfcx(tape: Tape, op: Op) -> None:
    """exp(x²)·erfc(x); for x < 0 it is 2 exp(x²) less the value at −x."""
    x = Double.of(tape, op.inputs[0])
    found = _scaled_complement(x.abs())
    (x < 0).where(2 * (x * x).exp() - found, found).result(op.outputs[0])


@form("LogNdtr")
def log_ndtr(tape: Tape, op: Op) -> None:
    """The logarithm of the standard normal distribution function."""
    x = Double.of(tape, op.inputs[0])
    a = x.abs() * math.sqrt(0.5)
    half = _scaled_complement(a) * 0.5
    beyond = half * (-(a * a)).exp()
    near_one = (beyond < 1e-6).where(-beyond - beyond * beyond * 0.5, (1 - beyond).log())
    (x < 0).where(half.log() - a * a, near_one).result(op.outputs[0])


@form("Hypot")
def hypot(tape: Tape, op: Op) -> None:
    """√(a² + b²)."""
    a, b = (Double.of(tape, name) for name in op.inputs)
    (a * a + b * b).sqrt().result(op.outputs[0])
