"""Losses as pure functions of tensors. They know neither models nor ranks."""

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(
    queries: Tensor,
    documents: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    excluded: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of each query's positive against all documents (paper, section 5.2.1).

    Shapes: queries ``(q, d)`` and documents ``(n, d)``, both unit-norm; positives ``(q,)``, the row
    of each query's positive among the documents; excluded ``(q, n)``, true where a document is no
    negative of the query. A query's own positive always takes part.
    """
    scores = similarity(queries, documents, temperature)
    if excluded is not None:
        scores = scores.masked_fill(excluded.scatter(1, positives[:, None], False), float("-inf"))
    return F.cross_entropy(scores, positives, reduction=reduction)


def similarity(queries: Tensor, documents: Tensor, temperature: float) -> Tensor:
    """Inner products over ``temperature``, ``(q, n)``, never below single precision."""
    # Under bf16 autocast the product would keep 8 bits of a score divided by 0.07.
    with torch.autocast(queries.device.type, enabled=False):
        wide = torch.promote_types(queries.dtype, torch.float32)
        return queries.to(wide) @ documents.to(wide).T / temperature


def false_negatives(
    queries: Tensor, positives: Tensor, owners: Tensor, documents: Tensor
) -> Tensor:
    """Which documents answer which queries although another row brought them.

    A document is a false negative of a query if its text is the query's own text, or the text of
    a positive of any row with the same query text.

    Args:
        queries: text hash of each query, ``(q,)``.
        positives: text hash of the positive of each row of the whole batch, ``(b,)``.
        owners: text hash of the query of each row of the whole batch, ``(b,)``.
        documents: text hash of each document, ``(n,)``.

    Returns:
        ``(q, n)``, true where the document must not count as a negative of the query.
    """
    same_text = queries[:, None] == documents
    # Pairs (query text, positive text) that the batch states, asked of all (query, document).
    texts, document_ids = torch.unique(torch.cat([documents, positives]), return_inverse=True)
    asked, query_ids = torch.unique(torch.cat([queries, owners]), return_inverse=True)
    stated = torch.zeros(len(asked), len(texts), dtype=torch.bool, device=queries.device)
    stated[query_ids[len(queries) :], document_ids[len(documents) :]] = True
    answers = stated[query_ids[: len(queries)]][:, document_ids[: len(documents)]]
    return same_text | answers
