"""``DtypeSettings``: the precision of a model that is loaded to encode texts."""

from typing import Any, Literal

from embedkit.config import Section

Dtype = Literal["auto", "bf16", "fp16", "fp32"]


class DtypeSettings(Section):
    """Settings of all work that loads a model: its precision."""

    dtype: Dtype = "auto"
    """The model computes in this type; auto is bf16 where the device multiplies it natively, else
    fp32."""

    def recorded(self) -> dict[str, Any]:
        """Return the settings as JSON has them, without ``dtype``: a model's identity tells it."""
        return self.model_dump(mode="json", exclude={"dtype"})
