"""NeoBERT. Importing this package registers it with transformers' ``Auto`` classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from embedkit.models.neobert.config import NeoBERTConfig
from embedkit.models.neobert.encoder import NeoBERTModel
from embedkit.models.neobert.heads import (
    NeoBERTForMaskedLM,
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
)

__all__ = [
    "NeoBERTConfig",
    "NeoBERTForMaskedLM",
    "NeoBERTForSequenceClassification",
    "NeoBERTForTokenClassification",
    "NeoBERTModel",
]

AutoConfig.register(NeoBERTConfig.model_type, NeoBERTConfig)
AutoModel.register(NeoBERTConfig, NeoBERTModel)
AutoModelForMaskedLM.register(NeoBERTConfig, NeoBERTForMaskedLM)
AutoModelForSequenceClassification.register(NeoBERTConfig, NeoBERTForSequenceClassification)
AutoModelForTokenClassification.register(NeoBERTConfig, NeoBERTForTokenClassification)
