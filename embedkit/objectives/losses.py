"""Losses as pure functions of tensors. They know neither models nor ranks."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LOGIT_ROWS = 1024
"""Number of tokens whose logits ``masked_lm`` holds at a time: 125 MB in fp32 with a vocabulary of
30,522."""


def info_nce(
    queries: Tensor,
    documents: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    excluded: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross-entropy of each query's positive among all documents (paper, section 5.2.1).

    Shapes: queries ``(q, d)`` and documents ``(n, d)``, both unit-norm; positives ``(q,)``, the row
    of each query's positive among the documents; excluded ``(q, n)``, true where a document is no
    negative of the query. A query's own positive always counts, even if ``excluded`` marks it.
    """
    scores = similarity(queries, documents, temperature)
    if excluded is not None:
        # In place to save memory: scores alone grow with the square of the batch size.
        scores.masked_fill_(excluded.scatter(1, positives[:, None], False), float("-inf"))
    return F.cross_entropy(scores, positives, reduction=reduction)


def similarity(queries: Tensor, documents: Tensor, temperature: float) -> Tensor:
    """Return inner products divided by ``temperature``, ``(q, n)``, in fp32 or wider."""
    # Under bf16 autocast the scores would have only 8 bits of precision.
    with torch.autocast(queries.device.type, enabled=False):
        wide = torch.promote_types(queries.dtype, torch.float32)
        return (queries.to(wide) / temperature) @ documents.to(wide).T


def truncated(rows: Tensor, dim: int) -> Tensor:
    """Truncate unit vectors ``(n, d)`` to ``(n, dim)`` and normalize them again."""
    return rows if dim == rows.shape[1] else F.normalize(rows[:, :dim], dim=1)


def false_negatives(
    queries: Tensor, positives: Tensor, owners: Tensor, documents: Tensor
) -> Tensor:
    """Return a mask of the documents that are positives of a query, whichever row they belong to.

    A document is a false negative of a query if its text is the query's own text, or the text of
    a positive of any row with the same query text.

    Args:
        queries: text hash of each query, ``(q,)``.
        positives: text hash of the positive of each row of the whole batch, ``(b,)``.
        owners: text hash of the query of each row of the whole batch, ``(b,)``.
        documents: text hash of each document, ``(n,)``.

    Returns:
        Mask ``(q, n)``, true where the document must not count as a negative of the query.
    """
    same_text = queries[:, None] == documents
    asked_for = torch.isin(owners, queries) & torch.isin(positives, documents)
    positives, owners = positives[asked_for], owners[asked_for]
    # ``stated`` is a table of the (query text, positive text) pairs in the batch, looked up for
    # every (query, document).
    texts, document_ids = torch.unique(torch.cat([documents, positives]), return_inverse=True)
    asked, query_ids = torch.unique(torch.cat([queries, owners]), return_inverse=True)
    stated = torch.zeros(len(asked), len(texts), dtype=torch.bool, device=queries.device)
    stated[query_ids[len(queries) :], document_ids[len(documents) :]] = True
    answers = stated[query_ids[: len(queries)]][:, document_ids[: len(documents)]]
    return same_text.logical_or_(answers)


def masked_lm(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of ``hidden @ weight.T + bias`` and the number of correct
    predictions.

    Logits are computed for a few rows at a time and never kept: the forward pass computes the
    gradients too, and the backward pass only scales them.

    Shapes: hidden ``(M, D)``, weight ``(V, D)``, bias ``(V,)``, targets ``(M,)``; M may be 0. Under
    autocast the products are computed in its dtype, the sums in fp32.
    """
    device = hidden.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    with torch.autocast(device, enabled=False):
        operands = (hidden.to(kind), weight.to(kind), bias, targets)
        if torch.is_grad_enabled():
            total, right = _MaskedLM.apply(*operands)
            return total, right
        return _masked_lm_pieces(*operands, gradients=None)


class _MaskedLM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(weight.dtype, torch.float32)
        gradients = (
            torch.empty_like(hidden),
            torch.zeros_like(weight, dtype=wide),
            torch.zeros_like(bias, dtype=wide),
        )
        total, right = _masked_lm_pieces(hidden, weight, bias, targets, gradients)
        ctx.save_for_backward(*gradients)
        ctx.kinds = hidden.dtype, weight.dtype, bias.dtype
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            (gradient * grads[0].to(gradient.dtype)).to(kind)
            for gradient, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
        ]
        return (*scaled, None)


def _masked_lm_pieces(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Return the loss and correct predictions of ``masked_lm``, summed over pieces of its rows.

    The gradients of the loss by hidden, weight and bias are written to ``gradients`` if given.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    total = torch.zeros((), dtype=wide, device=hidden.device)
    right = torch.zeros((), dtype=torch.int64, device=hidden.device)
    for start in range(0, len(hidden), _LOGIT_ROWS):
        piece = slice(start, start + _LOGIT_ROWS)
        states, target = hidden[piece], targets[piece, None]
        logits = (states @ weight.T).to(wide) + bias
        right += (logits.argmax(dim=1, keepdim=True) == target).sum()
        shares = logits.log_softmax(dim=1)
        total -= shares.gather(1, target).sum()
        if gradients is None:
            continue
        shares = shares.exp_()
        shares.scatter_add_(1, target, torch.full_like(target, -1, dtype=wide))
        gradients[2].add_(shares.sum(dim=0))
        shares = shares.to(hidden.dtype)
        gradients[0][piece] = shares @ weight
        gradients[1].add_(shares.T @ states)
    return total, right
