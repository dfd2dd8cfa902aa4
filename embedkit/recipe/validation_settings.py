"""Settings of validation: the pairs that a run does not train on, and what their scores decide."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from embedkit.config import Section


class Validation(Section):
    """Pairs that a run measures its model on; the best step by them is the one exported."""

    share: float | None = Field(default=None, gt=0, le=0.5)
    """Share of the documents that are held out of each source of the mixture: rows with such a
    positive are validation rows and are not trained on. Exactly one of ``share`` and ``records``
    is set."""
    records: str | None = None
    """Manifest whose rows are the validation rows, in place of a share of the mixture: a name under
    ``data_manifests/`` without ``.toml``, or a path."""
    every: PositiveInt = 100
    """Number of steps between two measurements. The model is also measured before the first step
    and after the last one."""
    metric: Literal["ndcg_at_10", "loss"] = "ndcg_at_10"
    """Measure that decides which step is the best: ``ndcg_at_10`` (higher is better) of finding the
    positives of each validation query among the validation documents, or the ``loss`` (lower is
    better), in the mean over sources."""
    patience: PositiveInt | None = None
    """The run stops after this many measurements in a row without a new best one. If unset, it
    takes all of its steps."""
    max_queries: PositiveInt = 300
    """Each source is measured on at most this many queries, drawn by ``seed``."""
    max_documents: PositiveInt = 2000
    """Each source's queries are searched among at most this many documents, drawn by ``seed``."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.share is None) == (self.records is None):
            raise ValueError(
                "give exactly one of share and records: share = 0.02 holds out 2 % of the documents"
            )
        return self
