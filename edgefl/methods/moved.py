"""Functions that a method had in earlier versions, and where they are now: a method written for them is refused, not misunderstood."""

from typing import TYPE_CHECKING, Any

HOOKS = {
    "adapt": "Personal", "advance": "Phased", "client_shapes": "Remembers", "decayed": "Penalised", "dense_reasons": "Factorizes",
    "draws": "Draws", "energy_bands": "Figures", "evaluated": "Receives", "factored": "Composes", "first_personal": "Personal",
    "keep": "Personal", "label_rows": "ByLabel", "observe": "Figures", "penalties": "Penalised", "personal": "Personal",
    "rebased": "Rebases", "receive": "Receives", "step_tiers": "Draws", "with_options": "Phased",
}  # fmt: skip
"""Function → the capability in ``edgefl.extend`` that has it."""
MOVED = {
    "checked": "the function checked(method, state, updates) of edgefl.extend",
    "composed": "part of deploy",
    "config_class": "edgefl.methods.options.config_class(type(method))",
    "criterion": "part of local_loss",
    "deployed": "device_network(architecture, tier)",
    "finish": "edgefl.methods.tier_sum.finish(state, sums)",
    "first_network": "part of init, such as GlobalState.begun(architecture, tiers, rng, build)",
    "fits": "edgefl.methods.capabilities.misfit(method, first, stored), with the capability Remembers for further checks",
    "folds": "edgefl.methods.tier_sum.folds(method)",
    "gaps": "edgefl.methods.tier_sum.gaps(method)",
    "global_tier": "edgefl.methods.networks.global_tier(method, state), decided by the attribute whole",
    "places": "part of submodel, such as cut_out(self, state, tier, places) of edgefl.extend",
    "shapes": "received_shapes of the capability Receives, or edgefl.methods.personal.download_shapes(method, architecture, tier)",
    "skeleton": "edgefl.methods.networks.skeleton(method, architecture, tier)",
    "stores": "edgefl.methods.personal.stored(method, architecture, tier)",
    "tier_sum": "edgefl.methods.tier_sum.tier_sum(method, architecture, tier)",
    "trained": "trained_network of the capability Receives, or edgefl.methods.personal.trained_network(method, …)",
    "upload_shapes": "edgefl.methods.networks.upload_shapes(method, architecture, tier), which follows from upload",
}
"""Function → what has taken its place."""


class OldNames:
    """Refuses functions of earlier versions: a class that defines one, and a call of one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise :class:`TypeError` if the class defines a function that nobody would call."""
        super().__init_subclass__(**kwargs)
        kinds = {base.__name__ for base in cls.__mro__ if base.__module__.startswith("edgefl.methods.")}
        for name in vars(cls):
            if (capability := HOOKS.get(name)) not in {None, *kinds}:
                raise TypeError(
                    f"{cls.__name__} defines {name}, which belongs to edgefl.extend.{capability}: derive from it, too"
                )
            if name in MOVED:
                raise TypeError(f"{cls.__name__} defines {name}, which methods no longer have; its place is now {MOVED[name]}")

    if not TYPE_CHECKING:  # mypy would take every name for one of a method

        def __getattr__(self, name: str) -> Any:
            """Raise :class:`AttributeError`, which says what has taken the place of an old name."""
            hint = f"; its place is now {MOVED[name]}" if name in MOVED else ""
            hint = f"; edgefl.extend.{HOOKS[name]} has it" if name in HOOKS else hint
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")
