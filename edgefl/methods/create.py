"""Create a method from its name and options, as a run's configuration has them."""

import pydantic

from edgefl.errors import ConfigError, nearest
from edgefl.methods.base import Method
from edgefl.methods.options import Scenario, config_class
from edgefl.registry import Options, methods
from edgefl.util.validation import explain


def create(
    name: str,
    options: Options | None = None,
    *,
    dynamic_tiers: bool = False,
    tiers: tuple[float, ...] | None = None,
    scenario: Scenario = "alike",
) -> Method:
    """Return the method ``name`` with ``options``.

    Three settings of the run reach only methods with an option of that name. ``dynamic_tiers``: whether clients change tier between
    rounds. ``tiers``: ratios of the run's tiers; None: the method's default tiers. ``scenario``: how clients differ besides their samples.

    Raises:
        UnknownNameError: no such method.
        ConfigError: an option's name or value is wrong.

    >>> create("fedhm", {"frobenius_decay": 0.001}).config.frobenius_decay
    0.001
    """
    method: type[Method] = methods.load(name)
    options = dict(options or {})
    kind = config_class(method)
    fields = kind.model_fields
    for key in options:
        if key not in fields:
            hint = f"{nearest(key, fields)} known: {', '.join(fields) or 'none'}"
            raise ConfigError(f"method_options.{key}: {name} has no such option;{hint}")
    for key, value in {"dynamic_tiers": dynamic_tiers, "tiers": tiers or method.default_tiers, "scenario": scenario}.items():
        if key in fields:
            options.setdefault(key, value)
    try:
        return method(kind(**options))
    except pydantic.ValidationError as error:
        raise ConfigError(f"method_options.{explain(error.errors()[0])}") from None


def check_tiers(name: str, ratios: tuple[float, ...]) -> None:
    """Raise :class:`ConfigError` if the method ``name`` trains one size only and ``ratios`` has several."""
    method: type[Method] = methods.load(name)
    if len(method.default_tiers) == 1 and len(ratios) > 1:
        raise ConfigError(f"tiers: {name} trains one size only, got {len(ratios)} tiers; give one, such as --tiers 1")
