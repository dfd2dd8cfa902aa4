"""Words for models that other modules share: similarities and export targets."""

from typing import Literal

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""Measures of how near two vectors are, by their names in sentence-transformers."""
ExportTarget = Literal["eurobert", "neobert", "onnx", "sentence-transformers"]
