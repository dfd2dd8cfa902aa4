import pytest
import torch
import torch.nn.functional as F
from support.ranks import run_on_ranks
from support.tiny_bert import gradients
from torch import Tensor

from embedkit import distributed
from embedkit.data.text.masked_batches import MaskedBatch
from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM
from embedkit.objectives.masked_lm import MaskedLMObjective, split_evenly
from embedkit.pretraining.language_model import LanguageModel
from embedkit.tokens.batch import TokenBatch

LENGTHS = [5, 2, 9, 4, 4, 7, 3, 6]
# No token of the last sequence is masked, two of the first are.
POSITIONS = [0, 3, 6, 8, 9, 15, 17, 21, 26, 31, 33]


def model() -> LanguageModel:
    config = NeoBERTConfig(
        vocab_size=23,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        decoder_init_range=0.3,
        embedding_init_range=1.0,
    )
    torch.manual_seed(0)
    return LanguageModel(NeoBERTForMaskedLM(config).double())


def batch() -> MaskedBatch:
    ids = torch.randint(5, 23, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor(POSITIONS)
    targets = ids[positions]
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    tokens = TokenBatch(ids.index_fill(0, positions, 3), offsets, torch.zeros_like(offsets[1:]))
    return MaskedBatch("text", tokens, positions, targets, rows=4)


def no_flops(_lengths: Tensor, masked: int) -> float:
    return float(masked)


def whole() -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the definition: one forward a sequence, logits for every token."""
    language_model, step = model(), batch()
    network = language_model.network
    logits = torch.cat(
        [
            network(input_ids=each[None]).logits[0]
            for each in step.tokens.ids.split(step.tokens.lengths.tolist())
        ]
    )
    loss = F.cross_entropy(logits[step.positions], step.targets)
    loss.backward()
    return loss.item(), gradients(language_model)


@pytest.mark.parametrize("micro_batch_tokens", [1, 7, 16, 1000])
@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_depend_on_neither_ranks_nor_micro_batches(
    world_size: int, micro_batch_tokens: int
) -> None:
    run_on_ranks(world_size, check_share, micro_batch_tokens, *whole())


def check_share(micro_batch_tokens: int, loss: float, expected: dict[str, Tensor]) -> None:
    language_model, step = model(), batch()
    rows = torch.arange(len(LENGTHS))
    mine = rows[distributed.share_of(len(rows), distributed.rank(), distributed.world_size())]
    objective = MaskedLMObjective(micro_batch_tokens, 12, no_flops)
    metrics = objective.backward(language_model, step.select(mine), key=0, scale=0.5)
    distributed.average_gradients(language_model.parameters())
    found = {name: 2 * each for name, each in gradients(language_model).items()}
    torch.testing.assert_close(found, expected)
    assert metrics["loss"].item() == pytest.approx(loss)
    assert metrics["masked"] == metrics["flops"] == len(POSITIONS)
    assert metrics["tokens"] == sum(LENGTHS)
    assert metrics["padding"] == pytest.approx(1 - sum(LENGTHS) / 48)


def test_a_step_that_masks_nothing_has_no_gradient() -> None:
    language_model, step = model(), batch()
    objective = MaskedLMObjective(1000, 12, no_flops)
    metrics = objective.backward(language_model, step.select(torch.tensor([7])), key=0, scale=1.0)
    assert metrics["loss"] == metrics["masked"] == 0
    assert not any(each.any() for each in gradients(language_model).values())


@pytest.mark.parametrize("count", range(1, 9))
def test_parts_are_even_and_none_is_empty(count: int) -> None:
    lengths = torch.tensor(LENGTHS)
    parts = split_evenly(lengths, count)
    assert len(parts) == count
    assert sorted(torch.cat(parts).tolist()) == list(range(len(LENGTHS)))
    assert all(len(part) for part in parts)
    sizes = [int(lengths[part].sum()) for part in parts]
    assert max(sizes) <= sum(LENGTHS) / count + max(LENGTHS)


def test_one_long_sequence_leaves_something_for_every_part() -> None:
    assert [len(part) for part in split_evenly(torch.tensor([1, 90, 1, 1]), 4)] == [1, 1, 1, 1]
    assert [len(part) for part in split_evenly(torch.tensor([1, 1, 1, 90]), 2)] == [1, 3]
