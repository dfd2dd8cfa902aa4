import pytest
import torch
from torch import Tensor

from embedkit.models.attention import (
    Kernel,
    Layout,
    choose_kernel,
    flash2,
    grouped,
    reference,
    varlen,
)

CPU = torch.device("cpu")
ON_CPU: tuple[Kernel, ...] = (reference, grouped)
LENGTHS = [5, 2, 7, 2, 1, 5, 2]
HEADS, WIDTH = 3, 8

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def inputs(lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(3, sum(lengths), HEADS, WIDTH, dtype=torch.float64, generator=generator)
    q, k, v = drawn.requires_grad_().unbind()
    return q, k, v


def attended(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """Through ``kernel``, with the order of its layout made and undone."""
    layout = Layout.of(torch.tensor(lengths), kernel, q.device)
    sorted_by_length = [layout.sort(x) for x in (q, k, v)]
    return layout.unsort(
        kernel(sorted_by_length[0], sorted_by_length[1], sorted_by_length[2], layout)
    )


def gradients(outcome: Tensor, wrt: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 1, outcome.numel()).to(outcome).view_as(outcome)
    return torch.autograd.grad((outcome * weights).sum(), wrt)


def test_the_reference_is_softmax_attention() -> None:
    q, k, v = (x.detach() for x in inputs([2]))
    outcome = attended(reference, q, k, v, [2])
    for head in range(HEADS):
        for token in range(2):
            scores = [float(q[token, head] @ k[other, head]) / WIDTH**0.5 for other in range(2)]
            weights = torch.tensor(scores, dtype=torch.float64).exp()
            expected = (weights[:, None] * v[:, head]).sum(0) / weights.sum()
            torch.testing.assert_close(outcome[token, head], expected)


def test_a_token_alone_attends_to_itself() -> None:
    q, k, v = inputs([1, 1, 1])
    for kernel in ON_CPU:
        torch.testing.assert_close(attended(kernel, q, k, v, [1, 1, 1]), v)


@pytest.mark.parametrize("lengths", [LENGTHS, [4], [3, 3, 3], [1, 2, 3], [3, 0, 2, 0]], ids=str)
def test_grouped_sequences_agree_with_the_reference_also_in_gradients(lengths: list[int]) -> None:
    outcomes, slopes = [], []
    for kernel in ON_CPU:
        given = inputs(lengths)
        outcomes.append(attended(kernel, *given, lengths))
        slopes.append(gradients(outcomes[-1], given))
    torch.testing.assert_close(outcomes[1], outcomes[0], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(slopes[1], slopes[0], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("kernel", "tolerance"), [(reference, 0.0), (grouped, 1e-12)])
def test_sequences_never_see_each_other(kernel: Kernel, tolerance: float) -> None:
    others = torch.ones(sum(LENGTHS), dtype=torch.bool)
    others[7:14] = False
    q, k, v = inputs(LENGTHS)
    changed = [torch.where(others[:, None, None], x, 3 - x) for x in (q, k, v)]
    before = attended(kernel, q, k, v, LENGTHS)
    after = attended(kernel, changed[0], changed[1], changed[2], LENGTHS)
    torch.testing.assert_close(after[others], before[others], atol=tolerance, rtol=tolerance)
    assert not torch.isclose(after[7:14], before[7:14]).any()
    for slope in torch.autograd.grad(before[others].sum(), (q, k, v)):
        assert not slope[7:14].any()
        assert slope[others].any()


def test_a_grouped_layout_puts_equal_lengths_side_by_side() -> None:
    layout = Layout.of(torch.tensor([3, 1, 2, 1]), grouped, CPU)
    assert layout.length_groups == ((1, 2), (2, 1), (3, 1))
    assert layout.ends.tolist() == [0, 1, 2, 4, 7]
    tokens = torch.tensor([30, 31, 32, 10, 20, 21, 11])
    assert layout.sort(tokens).tolist() == [10, 11, 20, 21, 30, 31, 32]
    assert torch.equal(layout.unsort(layout.sort(tokens)), tokens)


def test_a_layout_that_needs_no_order_moves_nothing() -> None:
    tokens = torch.arange(6)
    given: list[tuple[list[int], Kernel]] = [([1, 2, 3], grouped), ([3, 1, 2], varlen)]
    for lengths, kernel in given:
        layout = Layout.of(torch.tensor(lengths), kernel, CPU)
        assert layout.sort(tokens) is tokens
        assert layout.unsort(tokens) is tokens
        assert layout.ends.diff().tolist() == lengths


def test_a_layout_passes_over_empty_sequences() -> None:
    layout = Layout.of(torch.tensor([0, 2, 0, 2, 1]), reference, CPU)
    assert layout.length_groups == ((2, 2), (1, 1))
    assert layout.ends.tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize(("length", "longest"), [(1, 128), (128, 128), (129, 256)])
def test_the_longest_length_is_rounded_up(length: int, longest: int) -> None:
    assert Layout.of(torch.tensor([1, length]), varlen, CPU).longest == longest


def test_flash_kernels_are_left_alone_where_they_cannot_run() -> None:
    for name in (None, "sdpa", "flash_attention_2", "flash_attention_4"):
        assert choose_kernel(name, CPU, torch.bfloat16, 64) is grouped
        assert choose_kernel(name, torch.device("cuda"), torch.float32, 64) is grouped
        assert choose_kernel(name, torch.device("cuda"), torch.bfloat16, 20) is grouped
    assert choose_kernel("eager", torch.device("cuda"), torch.bfloat16, 64) is reference


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(grouped, marks=on_gpu),
        pytest.param(varlen, marks=on_gpu),
        pytest.param(flash2, marks=on_gpu),
    ],
)
def test_kernels_on_the_gpu_agree_with_the_reference(kernel: Kernel) -> None:
    if kernel is flash2:
        pytest.importorskip("flash_attn")
    lengths = [70, 3, 200, 3, 1, 128]
    exact = inputs(lengths)
    expected = attended(reference, *exact, lengths)
    q, k, v = (x.detach().cuda().bfloat16().requires_grad_() for x in exact)
    outcome = attended(kernel, q, k, v, lengths)
    assert outcome.dtype == torch.bfloat16
    torch.testing.assert_close(outcome.double().cpu(), expected, atol=2e-2, rtol=2e-2)
    slopes = [slope.double().cpu() for slope in gradients(outcome, (q, k, v))]
    torch.testing.assert_close(slopes, list(gradients(expected, exact)), atol=2e-2, rtol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_half_precision_on_the_gpu_takes_the_kernels_of_torch() -> None:
    device = torch.device("cuda")
    for dtype in (torch.float16, torch.bfloat16):
        assert choose_kernel("sdpa", device, dtype, 64) is varlen
        assert choose_kernel("flash_attention_2", device, dtype, 64) is flash2
