from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedkit.models.cpu_linear import packed
from embedkit.models.hub import load
from embedkit.models.load import computing_in

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 8, bias=False))


INPUTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(7, 24),
    "sequences": lambda: torch.randn(3, 5, 24),
    "transposed": lambda: torch.randn(24, 9).T,
    "every other row": lambda: torch.randn(10, 24)[::2],
    "one row": lambda: torch.randn(24),
    "no row": lambda: torch.randn(0, 24),
}


@pytest.mark.parametrize("name", INPUTS)
def test_products_agree_with_double_precision(name: str) -> None:
    model, x = network(), INPUTS[name]()
    twin = network().double()
    twin.load_state_dict(model.state_dict())
    with torch.inference_mode(), packed(model):
        assert all("forward" in vars(layer) for layer in (model[0], model[2]))
        actual = model(x)
    torch.testing.assert_close(actual, twin(x.double()).float(), rtol=1e-5, atol=1e-6)


def test_afterwards_a_model_computes_as_before_even_after_an_error() -> None:
    model, x = nn.Linear(24, 8), torch.randn(6, 24)
    before = model(x)
    with pytest.raises(RuntimeError, match="stop"), packed(model):
        raise RuntimeError("stop")
    with torch.no_grad():
        model.weight.mul_(2)
    assert "forward" not in vars(model)
    assert not torch.equal(model(x), before)
    assert torch.equal(model(x), F.linear(x, model.weight, model.bias))


def test_gradients_are_those_of_the_plain_layers() -> None:
    model, x = network(), torch.randn(6, 24)
    expected = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    with packed(model):
        actual = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    assert all(map(torch.equal, actual, expected))


def test_autocast_and_double_precision_are_left_as_they_are() -> None:
    model, x = network(), torch.randn(6, 24)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        with packed(model):
            assert torch.equal(model(x), expected)
    with packed(model.double()):
        assert "forward" not in vars(model[0])


def test_where_onednn_is_switched_off_nothing_changes() -> None:
    model = network()
    with torch.backends.mkldnn.flags(enabled=False), packed(model):
        assert "forward" not in vars(model[0])


def test_a_layer_of_a_class_of_its_own_keeps_its_forward() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model, x = Doubled(4, 4), torch.randn(2, 4)
    with torch.inference_mode(), packed(model):
        assert torch.equal(model(x), 2 * F.linear(x, model.weight, model.bias))


def test_an_evaluation_packs_its_model(tiny_model: Path) -> None:
    model = load(str(tiny_model))
    linear = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
    with computing_in("fp32", model):
        assert "forward" in vars(linear)
        inside = model.encode(["a text", "another text of more words"])
    assert "forward" not in vars(linear)
    outside = model.encode(["a text", "another text of more words"])
    torch.testing.assert_close(torch.tensor(inside), torch.tensor(outside), rtol=1e-5, atol=1e-6)
