"""The options of a method, and how the clients of its run differ."""

from functools import cache
from typing import Any, Literal, get_type_hints

import pydantic

Scenario = Literal["alike", "permuted", "domains"]
"""How clients differ besides their samples: not at all, in the order of their labels, or in the data set that they draw from."""


class MethodConfig(pydantic.BaseModel):
    """Options of a method. A subclass has one field per option; an unknown key is an error."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    def __hash__(self) -> int:
        """Return the hash of the options as JSON, because options that are tables have no hash."""
        return hash(self.model_dump_json())


def config_class(method: Any) -> type[MethodConfig]:
    """Return the class that annotates ``config`` in the class of a method."""
    return _config_class(method)


@cache
def _config_class(method: Any) -> type[MethodConfig]:
    return get_type_hints(method)["config"]


class PersonalClassifierConfig(MethodConfig):
    """Options of methods whose clients may keep the classifier.

    Attributes:
        personal_classifier: whether the classifier never leaves its client. None: only if labels are permuted or clients have several
            data sets. Classifiers with different meanings cannot be averaged.
        scenario: how the clients differ: labels ``alike`` or ``permuted``, or several ``domains``. Set by the run.
    """

    personal_classifier: bool | None = None
    scenario: Scenario = "alike"

    @property
    def keeps_classifier(self) -> bool:
        """Whether the classifier stays on its client."""
        return self.scenario != "alike" if self.personal_classifier is None else self.personal_classifier
