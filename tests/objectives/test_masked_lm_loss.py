import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from embedkit.objectives import losses
from embedkit.objectives.losses import masked_lm

VOCABULARY, WIDTH = 11, 4


def operands(
    count: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, decoder weight and bias that want gradients, and targets."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    targets = torch.randint(VOCABULARY, (count,), generator=generator)
    return draw(count, WIDTH), draw(VOCABULARY, WIDTH), draw(VOCABULARY), targets


@pytest.mark.parametrize("count", [1, 3, 7, 8])
def test_the_sum_and_its_gradients_are_those_of_whole_logits(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_LOGIT_ROWS", 3)
    hidden, weight, bias, targets = operands(count)
    logits = hidden @ weight.T + bias
    expected = F.cross_entropy(logits, targets, reduction="sum")
    wanted = torch.autograd.grad(3 * expected, [hidden, weight, bias])
    total, right = masked_lm(hidden, weight, bias, targets)
    torch.testing.assert_close(total, expected)
    assert right == (logits.argmax(1) == targets).sum()
    found = torch.autograd.grad(3 * total, [hidden, weight, bias])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_no_masked_token_is_no_loss_and_no_gradient() -> None:
    hidden, weight, bias, targets = operands(0)
    total, right = masked_lm(hidden, weight, bias, targets)
    total.backward()
    assert total == right == 0
    assert weight.grad is not None
    assert not weight.grad.any()


def test_without_gradients_the_sum_is_the_same() -> None:
    expected, _ = masked_lm(*operands(5))
    with torch.no_grad():
        total, _ = masked_lm(*operands(5))
    assert torch.equal(total, expected)
    assert not total.requires_grad


def test_autocast_makes_products_in_its_type_and_sums_in_fp32() -> None:
    hidden, weight, bias, targets = operands(5, torch.float32)
    expected, _ = masked_lm(hidden, weight, bias, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, _ = masked_lm(hidden, weight, bias, targets)
    total.backward()
    assert total.dtype == torch.float32
    assert total != expected
    torch.testing.assert_close(total, expected, rtol=0.02, atol=0.05)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
