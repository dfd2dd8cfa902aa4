import math

import numpy as np
import pytest
import torch

from embedkit.held_out_loss import unigram_loss


def test_guessing_by_frequency_costs_the_mean_surprise() -> None:
    seen = np.array([0, 1, 1, 3], dtype=np.uint16)
    # With one more for each of four words: 2, 3, 1 and 2 of 8.
    surprises = [math.log(8 / 3), math.log(8 / 1), math.log(8 / 3)]
    found = unigram_loss(seen, torch.tensor([1, 2, 1]), vocabulary=4)
    assert found == pytest.approx(sum(surprises) / 3)


def test_nothing_to_guess_costs_nothing() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    assert unigram_loss(np.array([1, 2], dtype=np.uint16), nothing, vocabulary=4) == 0
