"""Arguments about models that commands and Python calls share: precisions and export targets."""

from typing import Any, Literal

from embedkit.config import Section

Dtype = Literal["auto", "bf16", "fp16", "fp32"]
ExportTarget = Literal["eurobert", "neobert", "onnx", "sentence-transformers"]


class DtypeSettings(Section):
    """Settings of all work that loads a model: its precision."""

    dtype: Dtype = "auto"
    """The model computes in this type; auto is bf16 where the device multiplies it natively, else
    fp32."""

    def recorded(self) -> dict[str, Any]:
        """Return the settings as JSON has them, without ``dtype``: a model's identity tells it."""
        return self.model_dump(mode="json", exclude={"dtype"})
