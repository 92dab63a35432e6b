"""Functions of the normal distribution: the inverse of its distribution function, the scaled complement of erf, logarithms.

The computation is in float64: ONNX has no erf of that type, but its scaled complement has a short polynomial.
"""

import math

from edgefl.onnxgrad.composites.formula import Formula
from edgefl.onnxgrad.gradients.op import Op, form
from edgefl.onnxgrad.gradients.tape import Tape

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
    p = Formula.of(tape, op.inputs[0])
    _quantile(p - 0.5, (p < 0.5).where(p, 1 - p)).result(op.outputs[0])


@form("Erfinv")
def erfinv(tape: Tape, op: Op) -> None:
    """The quantile at (1 + x) / 2, divided by √2."""
    x = Formula.of(tape, op.inputs[0])
    (_quantile(x * 0.5, (1 - x.abs()) * 0.5) * math.sqrt(0.5)).result(op.outputs[0])


def _quantile(q: Formula, least: Formula) -> Formula:
    """Return the quantile at 1/2 + ``q``; ``least`` is 1/2 − |q|."""
    near = (q.abs() < _NEAR).where(_NEAR**2 - q * q, 0)
    r = (-least.log()).sqrt()
    tail = (r < _FAR).where(_quotient((r < _FAR).where(r - 1.6, 0), _MIDDLE), _quotient(r - _FAR, _TAIL))
    tail = least.op("Equal", 0.0).where(math.inf, tail)
    return (q.abs() < _NEAR).where(q * _quotient(near, _CENTRE), (q < 0).where(-tail, tail))


def _quotient(x: Formula, both: tuple[tuple[float, ...], tuple[float, ...]]) -> Formula:
    above, below = both
    return x.polynomial(above) / x.polynomial(below)


def _scaled_complement(x: Formula) -> Formula:
    """Return exp(x²)·erfc(x) for x ≥ 0."""
    return (1 - 6 / (x + 3)).polynomial(_SCALED_COMPLEMENT) / (x + 1)


@form("Erfcx")
def erfcx(tape: Tape, op: Op) -> None:
    """exp(x²)·erfc(x); for x < 0 it is 2 exp(x²) less the value at −x."""
    x = Formula.of(tape, op.inputs[0])
    found = _scaled_complement(x.abs())
    (x < 0).where(2 * (x * x).exp() - found, found).result(op.outputs[0])


@form("LogNdtr")
def log_ndtr(tape: Tape, op: Op) -> None:
    """The logarithm of the standard normal distribution function."""
    x = Formula.of(tape, op.inputs[0])
    a = x.abs() * math.sqrt(0.5)
    half = _scaled_complement(a) * 0.5
    beyond = half * (-(a * a)).exp()
    near_one = (beyond < 1e-6).where(-beyond - beyond * beyond * 0.5, (1 - beyond).log())
    (x < 0).where(half.log() - a * a, near_one).result(op.outputs[0])
