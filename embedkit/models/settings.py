"""``ExportTarget``: the formats that a model is exported in, which commands and calls share."""

from typing import Literal

ExportTarget = Literal["eurobert", "neobert", "onnx", "sentence-transformers"]
