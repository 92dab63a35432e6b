"""What a method is created with: its options, and how the clients of its run differ."""

from typing import Literal

import pydantic

Scenario = Literal["alike", "permuted", "domains"]
"""How clients differ besides their samples: not at all, in the order of their labels, or in the data set that they draw from."""


class MethodConfig(pydantic.BaseModel):
    """Options of a method. A subclass has one field per option; an unknown key is an error."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    def __hash__(self) -> int:
        """Return the hash of the options as JSON, because options that are tables have no hash."""
        return hash(self.model_dump_json())
