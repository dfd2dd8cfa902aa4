"""Losses on scores of pairs as pure functions of tensors. They know neither models nor ranks."""

import torch
import torch.nn.functional as F
from torch import Tensor


def pairwise_cosines(queries: Tensor, documents: Tensor) -> Tensor:
    """Return the inner product of each row of unit vectors. Shapes: two of ``(n, d)`` -> ``(n,)``.

    The result is in fp32 or wider, also under autocast.
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    return (queries.to(wide) * documents.to(wide)).sum(dim=1)


def pairwise_angles(queries: Tensor, documents: Tensor) -> Tensor:
    """Return AnglE's similarity of each row of unit vectors: ``|cosine + sine|``.

    The two halves of a vector are the real and imaginary parts of a complex vector (Li and Li,
    2023, "AnglE-optimized Text Embeddings", section 3.4). A vector of odd width gets a zero.

    Shapes: two of ``(n, d)`` -> ``(n,)``, in fp32 or wider.
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    pad = (0, queries.shape[1] % 2)
    one, other = (F.pad(rows.to(wide), pad) for rows in (queries, documents))
    real_one, imaginary_one = one.chunk(2, dim=1)
    real_other, imaginary_other = other.chunk(2, dim=1)
    sines = (imaginary_one * real_other - real_one * imaginary_other).sum(dim=1)
    return ((one * other).sum(dim=1) + sines).abs()


def cosent(similarities: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return ``log(1 + sum exp((s_j - s_i) / temperature))`` over pairs i that score above j.

    ``s`` are the similarities (Su, 2022, "CoSENT"; Huang et al., 2024, eq. 3). Pairs of equal
    scores are not compared. Time is ``n log n`` and memory ``n``, since the sum over the higher
    scores is a cumulative one.

    Shapes: similarities and scores ``(n,)`` -> ``()``.
    """
    ordered, order = scores.sort()
    ascending = similarities[order] / temperature
    # Each entry is the log of the sum of exp(-s) over the pairs from that one on.
    from_each_on = (-ascending).flip(0).logcumsumexp(dim=0).flip(0)
    from_each_on = torch.cat([from_each_on, ascending.new_full((1,), -torch.inf)])
    above = torch.searchsorted(ordered, ordered, right=True)
    terms = ascending + from_each_on[above]
    return torch.cat([terms.new_zeros(1), terms]).logsumexp(dim=0)


def by_query(values: Tensor, owners: Tensor, queries: int) -> tuple[Tensor, Tensor]:
    """Arrange a value of each document in a row for its query, in the order of the documents.

    Shapes: values and owners ``(n,)``, owners below ``queries``; the result, values and the mask of
    those that are there, both ``(queries, m)`` for the most documents m of a query.
    """
    order = owners.argsort(stable=True)
    counts = owners.bincount(minlength=queries)
    starts = counts.cumsum(0) - counts
    rows = owners[order]
    columns = torch.arange(len(owners), device=owners.device) - starts[rows]
    shape = queries, int(counts.max()) if queries else 0
    there = torch.zeros(shape, dtype=torch.bool, device=owners.device)
    there[rows, columns] = True
    return values.new_zeros(shape).index_put((rows, columns), values[order]), there


def distillation_kl(
    student: Tensor,
    teacher: Tensor,
    there: Tensor,
    *,
    temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """Return the divergence of the teacher's softmax over each row from the student's, summed.

    It is multiplied by ``temperature`` squared, as in Hinton et al. (2015), section 2.

    Shapes: student, teacher and ``there``, the mask of the entries, ``(q, m)`` -> ``()``.
    """
    lowest = torch.finfo(student.dtype).min
    scaled = (student / temperature, teacher.to(student) / teacher_temperature)
    ours, theirs = (rows.masked_fill(~there, lowest).log_softmax(dim=1) for rows in scaled)
    terms = theirs.exp() * (theirs - ours)
    return terms.masked_fill(~there, 0).sum() * temperature**2


def margin_errors(student: Tensor, teacher: Tensor, there: Tensor) -> Tensor:
    """Return the squared differences of student's and teacher's margins, summed.

    A margin is the score of the positive, in column 0, minus that of a negative.

    Shapes: student, teacher and ``there``, the mask of the entries, ``(q, m)`` -> ``()``.
    """
    ours, theirs = (rows[:, :1] - rows[:, 1:] for rows in (student, teacher.to(student)))
    return ((ours - theirs) ** 2).masked_fill(~there[:, 1:], 0).sum()


def spearman(one: Tensor, other: Tensor) -> Tensor:
    """Return Spearman's rank correlation, 0 if either is constant. Shapes: ``(n,)`` -> ``()``."""
    ranks = []
    for values in (one, other):
        ordered = values.sort().values
        # Equal values share the mean of their ranks.
        below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
        ranks.append((below + upto).float())
    return torch.corrcoef(torch.stack(ranks))[0, 1].nan_to_num(0.0)
