import itertools

import pytest
import torch
from support.tiny_bert import tiny_bert
from support.tiny_neobert import tiny_neobert
from torch import Tensor
from transformers import RobertaConfig, RobertaModel

from embedkit.models import backbones
from embedkit.models.backbones import Backbone, PaddedBackbone, absolute_positions, padding_plan
from embedkit.tokens.batch import TokenBatch

SEQUENCES = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17], [18, 19, 20, 21], [22, 23]]


def cost(lengths: Tensor, chunks: list[Tensor], chunk_cost: int) -> int:
    return sum(len(chunk) * int(lengths[chunk].max()) + chunk_cost for chunk in chunks)


def cheapest(lengths: list[int], chunk_cost: int) -> int:
    """By trying every cut of the sorted lengths."""
    ordered, count = sorted(lengths), len(lengths)
    costs = []
    for cuts in itertools.product([False, True], repeat=count - 1):
        edges = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), count]
        costs.append(
            sum((b - a) * ordered[b - 1] + chunk_cost for a, b in itertools.pairwise(edges))
        )
    return min(costs)


@pytest.mark.parametrize("chunk_cost", [0, 1, 5, 30, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_the_plan_is_a_partition_and_none_is_cheaper(seed: int, chunk_cost: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5 + 10 * seed, (9,), generator=generator)
    chunks = padding_plan(lengths, chunk_cost)
    assert sorted(torch.cat(chunks).tolist()) == list(range(9))
    assert cost(lengths, chunks, chunk_cost) == cheapest(lengths.tolist(), chunk_cost)


def test_chunks_go_from_short_to_long() -> None:
    chunks = padding_plan(torch.tensor([90, 10, 11, 88, 10]), chunk_cost=20)
    assert [chunk.tolist() for chunk in chunks] == [[1, 4, 2], [3, 0]]


def test_one_sequence_is_one_chunk() -> None:
    assert [chunk.tolist() for chunk in padding_plan(torch.tensor([7]), 128)] == [[0]]


def alone(backbone: Backbone) -> Tensor:
    """Hidden states with every sequence read by itself, so that nothing is padded."""
    states = [
        backbone.model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in SEQUENCES
    ]
    return torch.cat(states)


@pytest.mark.parametrize("chunk_cost", [0, 4, 1000])
def test_padding_changes_no_hidden_state(chunk_cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Backbone.forward.__globals__["_CHUNK_COST"], "cpu", chunk_cost)
    backbone = PaddedBackbone(tiny_bert(vocabulary=64).double().eval(), pad_id=0)
    actual = backbone(TokenBatch.from_lists(SEQUENCES))
    torch.testing.assert_close(actual, alone(backbone))


@pytest.mark.parametrize("training", [False, True])
def test_a_cpu_encodes_few_tokens_at_a_time_but_trains_on_whole_chunks(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(backbones)["_CHUNK_COST"], "cpu", 1000)
    monkeypatch.setattr(backbones, "_CPU_TOKENS", 16)
    backbone = PaddedBackbone(tiny_bert(vocabulary=64).double(), pad_id=0).train(training)
    read: list[int] = []
    backbone.model.register_forward_pre_hook(
        lambda _, __, inputs: read.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    actual = backbone(TokenBatch.from_lists(SEQUENCES))
    if training:
        assert read == [6 * 7]
    else:
        # Six rows of seven tokens are 42, which are read in three parts.
        assert len(read) == 3
        assert max(read) <= 16
        torch.testing.assert_close(actual, alone(backbone))


def test_a_model_that_counts_positions_from_its_padding_id_agrees_too() -> None:
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        pad_token_id=1,
    )
    backbone = PaddedBackbone(RobertaModel(config).double().eval(), pad_id=1)
    torch.testing.assert_close(backbone(TokenBatch.from_lists(SEQUENCES)), alone(backbone))


def test_gradients_pass_through_padding() -> None:
    whole, single = (PaddedBackbone(tiny_bert(vocabulary=64).double().eval(), 0) for _ in range(2))
    weights = torch.linspace(-1, 1, 19, dtype=torch.float64)[:, None]
    (whole(TokenBatch.from_lists(SEQUENCES)) * weights).sum().backward()
    (alone(single) * weights).sum().backward()
    for ours, theirs in zip(whole.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_width_is_that_of_the_hidden_states() -> None:
    backbone = PaddedBackbone(tiny_bert(vocabulary=64, width=24), pad_id=0)
    assert backbone.width == backbone(TokenBatch.from_lists([[1, 2]])).shape[1] == 24


def test_only_a_table_of_positions_ends() -> None:
    roberta = RobertaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    assert absolute_positions(tiny_bert()) == 128
    # Two rows lie in front of the first token's.
    assert absolute_positions(RobertaModel(roberta)) == roberta.max_position_embeddings - 2
    assert absolute_positions(tiny_neobert(position="absolute")) == 128
    assert absolute_positions(tiny_neobert()) is None
