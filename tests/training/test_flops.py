import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from embedkit.training.flops import matmul_peak, training_flops


def test_a_matrix_product_takes_time() -> None:
    assert 1e8 < matmul_peak(torch.device("cpu"), torch.float32) < 1e16


def test_flops_are_those_that_torch_counts() -> None:
    width, lengths, masked = 16, torch.tensor([5, 3]), 2
    matrices = [nn.Linear(width, width, bias=False) for _ in range(4)]
    decoder = nn.Linear(width, 50)
    with FlopCounterMode(display=False) as counter:
        states = torch.randn(8, width, requires_grad=True)
        query, key, value = (each(states) for each in matrices[:3])
        parts = [
            (q @ k.T).softmax(-1) @ v
            for q, k, v in zip(*(each.split([5, 3]) for each in (query, key, value)), strict=True)
        ]
        hidden = matrices[3](torch.cat(parts))
        decoder(hidden[:masked]).sum().backward()
    expected = training_flops(
        lengths,
        masked,
        matrices=sum(each.weight.numel() for each in matrices),
        decoder=decoder.weight.numel(),
        layers=1,
        width=width,
    )
    assert counter.get_total_flops() == expected
