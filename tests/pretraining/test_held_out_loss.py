import math

import pytest
import torch

from embedkit.pretraining.held_out_loss import unigram_loss

FREQUENCIES = torch.tensor([2, 3, 1, 2], dtype=torch.float64) / 8


def test_guessing_by_frequency_costs_the_mean_surprise() -> None:
    surprises = [math.log(8 / 3), math.log(8 / 1), math.log(8 / 3)]
    found = unigram_loss(FREQUENCIES, torch.tensor([1, 2, 1]))
    assert found == pytest.approx(sum(surprises) / 3)


def test_nothing_to_guess_costs_nothing() -> None:
    assert unigram_loss(FREQUENCIES, torch.empty(0, dtype=torch.int64)) == 0
