"""What must and must not change a vector, for every architecture, in double precision."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from support.small_contextual import BACKBONES, DOCUMENTS, TEXTS, WIDTH, backbone, contextual
from torch import Tensor

from embedkit.errors import UserError
from embedkit.models.contextual.model import Contextual
from embedkit.models.contextual.prefix import Prefix
from embedkit.recipe import ContextualConfig
from embedkit.tokens.batch import TokenBatch

HEADS: dict[str, Any] = {
    "soft_prompts": 2,
    "context_projection": True,
    "output_projection": True,
}
SHAPES: list[dict[str, Any]] = [{}, HEADS]
SHAPE_NAMES = ["plain", "heads"]


def context_of(model: Contextual, documents: TokenBatch = DOCUMENTS) -> Tensor:
    return model.embed_context(documents)


def differ(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > 1e-4)


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_the_order_of_the_context_is_of_no_consequence(kind: str, shape: dict[str, Any]) -> None:
    model = contextual(kind, **shape)
    context = context_of(model)
    expected = model(TEXTS, context)
    torch.testing.assert_close(model(TEXTS, context[[2, 0, 3, 1]]), expected)


@pytest.mark.parametrize("kind", BACKBONES)
def test_words_in_the_place_of_a_context_are_read_as_those_words(kind: str) -> None:
    # So positions, types and padding are the encoder's own; a wide window leaves nothing to widen.
    network = backbone(kind, **({"local_attention": 128} if kind == "modernbert" else {}))
    before = [30, 31, 32]
    words: Any = network.model.get_input_embeddings()
    vectors = words(torch.tensor(before)).expand(len(TEXTS), -1, -1)
    states = network(TEXTS, Prefix(vectors, torch.arange(3), text_start=3))
    texts = [TEXTS.ids[a:b].tolist() for a, b in pairwise(TEXTS.offsets.tolist())]
    whole = network(TokenBatch.from_lists([before + text for text in texts]))
    is_text = torch.tensor([place >= 3 for text in texts for place in range(3 + len(text))])
    torch.testing.assert_close(states, whole[is_text])


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_every_context_document_changes_every_text(kind: str, number: int) -> None:
    model = contextual(kind)
    changed = [DOCUMENTS.ids[a:b].tolist() for a, b in pairwise(DOCUMENTS.offsets.tolist())]
    changed[number] = [41, 42, 43]
    one, other = (
        model(TEXTS, context_of(model, documents))
        for documents in (DOCUMENTS, TokenBatch.from_lists(changed))
    )
    assert (one - other).abs().amax(dim=1).min() > 1e-5


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_neither_padding_nor_batch_mates_matter(kind: str, shape: dict[str, Any]) -> None:
    model = contextual(kind, **shape)
    documents = [context_of(model, DOCUMENTS.select(torch.tensor([row]))) for row in range(4)]
    context = context_of(model)
    torch.testing.assert_close(context, torch.cat(documents))
    alone = [model(TEXTS.select(torch.tensor([row])), context) for row in range(len(TEXTS))]
    torch.testing.assert_close(model(TEXTS, context), torch.cat(alone))


@pytest.mark.parametrize("kind", BACKBONES)
def test_slots_without_a_document_hold_the_null_vector(kind: str) -> None:
    model = contextual(kind, context_norm=False)
    assert model.slots.null is not None
    some = context_of(model)[:2]
    filled = torch.cat([some, model.slots.null.expand(2, -1)])
    torch.testing.assert_close(model(TEXTS, some), model(TEXTS, filled))
    none = model(TEXTS, some[:0])
    torch.testing.assert_close(none, model(TEXTS, model.slots.null.expand(4, -1)))
    assert differ(none, model(TEXTS, some))


def test_dropping_every_slot_is_having_no_context() -> None:
    model = contextual(context_dropout=1.0)
    context = context_of(model)
    torch.testing.assert_close(model(TEXTS, context), model(TEXTS, context[:0]))
    assert differ(model(TEXTS, context), model.eval()(TEXTS, context))


def test_every_text_drops_slots_of_its_own_and_only_in_training() -> None:
    model = contextual(context_dropout=0.5)
    context = context_of(model)
    same = TokenBatch.from_lists([[5, 6, 7]] * 8)
    torch.manual_seed(0)
    trained = model(same, context)
    assert len(torch.unique(trained.round(decimals=8), dim=0)) > 2
    assert len(torch.unique(model.eval()(same, context).round(decimals=8), dim=0)) == 1


@pytest.mark.parametrize("kind", BACKBONES)
def test_vectors_are_unit_and_as_many_as_texts(kind: str) -> None:
    model = contextual(kind, **HEADS)
    vectors = model(TEXTS, context_of(model))
    assert vectors.shape == (len(TEXTS), WIDTH)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(TEXTS)).double())


@pytest.mark.parametrize(
    "settings",
    [
        {"context_norm": False},
        {"soft_prompts": 2},
        {"output_projection": True},
        {"output_projection": True, "output_residual": False},
        {"context_projection": True},
        {"first_position": 4},
        {"position_free": False},
        {"tied": True},
        {"num_context": 5},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_every_setting_changes_the_vectors(settings: dict[str, Any]) -> None:
    plain, other = contextual("neobert"), contextual("neobert", **settings)
    assert differ(plain(TEXTS, context_of(plain)), other(TEXTS, context_of(other)))


def test_with_positions_the_order_of_the_context_matters() -> None:
    model = contextual("neobert", position_free=False)
    context = context_of(model)
    assert differ(model(TEXTS, context), model(TEXTS, context[[2, 0, 3, 1]]))


def test_the_prompt_takes_part_in_the_mean_unless_told_otherwise() -> None:
    prompted = TokenBatch(TEXTS.ids, TEXTS.offsets, torch.tensor([1, 0, 2, 0, 0, 3]))
    include, leave = contextual(), contextual(include_prompt=False)
    one, other = (model(prompted, context_of(model)) for model in (include, leave))
    changed = (one - other).norm(dim=1) > 1e-4
    assert changed.tolist() == [True, False, True, False, False, True]
    # Nothing is left of the last.
    assert other[5].norm() == 0


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_window_and_table_of_positions_end_where_the_text_does(kind: str) -> None:
    # Positions of its own would take the context to 60, and this text behind the table's end.
    model = contextual(kind, num_context=60)
    long = TokenBatch.from_lists([[5] * 60])
    assert model(long, context_of(model)).isfinite().all()


def test_modernberts_windows_hide_neither_context_nor_more_than_before() -> None:
    model = contextual("modernbert")
    assert model.config.entry == "token"
    # A layer of windows alone: what is two tokens away is seen, three away is not.
    network: Any = model.second.model
    network.config.layer_types = ["sliding_attention"] * 3
    for layer in network.layers:
        layer.attention_type = "sliding_attention"
    network.layers = network.layers[:1]
    model.slots.null = None
    context = context_of(model)
    tokens = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 9, 10, 33]]

    def states(words: list[int], vectors: Tensor) -> Tensor:
        batch = TokenBatch.from_lists([words])
        return model.second(batch, model.slots(vectors, 1))

    one, other = (states(each, context) for each in tokens)
    moved = (one - other).norm(dim=1) > 1e-6
    assert moved.tolist() == [False] * 4 + [True] * 3
    seen = (one - states(tokens[0], context * 2 + 1)).norm(dim=1) > 1e-6
    assert seen.all()


@pytest.mark.parametrize("kind", ["bert", "modernbert", "eurobert"])
@pytest.mark.parametrize("tied", [False, True])
def test_texts_are_read_by_a_kernel_that_takes_a_mask(kind: str, tied: bool) -> None:
    encoder = backbone(kind)
    # As hub.load leaves it where flash-attn is installed.
    encoder.model.config._attn_implementation = "flash_attention_2"
    model = contextual(kind)
    around = Contextual(
        None if tied else model.first,
        encoder,
        model.tokenizer,
        ContextualConfig(num_context=4, tied=tied),
        prompts={},
        max_tokens=9,
        position_limit=64,
        name="tiny",
    )
    alone = TokenBatch.from_lists([[5, 6, 7]])
    one, other = (around(alone, context_of(model) * sign) for sign in (1, -1))
    assert differ(one, other)


def test_one_encoder_serves_both_stages_when_tied() -> None:
    tied = contextual("neobert", tied=True)
    assert tied.first is tied.second
    names = list(tied.state_dict())
    assert not [name for name in names if "first" in name]
    untied = contextual("neobert")
    assert len(untied.state_dict()) > 1.5 * len(names)


def test_all_weights_take_part() -> None:
    model = contextual("neobert", **HEADS)
    model(TEXTS, context_of(model)[:3]).sum(0)[0].backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum()
    ]
    assert without == []


def test_context_vectors_enter_on_the_scale_of_words() -> None:
    fresh = Contextual(
        None,
        contextual("neobert").second,
        contextual().tokenizer,
        ContextualConfig(num_context=4),
        prompts={},
        max_tokens=9,
        position_limit=64,
        name="tiny",
    ).double()
    words: Any = fresh.second.model.get_input_embeddings()
    vectors = fresh.slots(100 * torch.randn(4, WIDTH, dtype=torch.float64), 1).vectors
    torch.testing.assert_close(
        vectors.square().mean(-1).sqrt(),
        words.weight.square().mean().sqrt().expand(1, 4),
        rtol=1e-4,
        atol=0,
    )


@pytest.mark.parametrize(
    ("settings", "documents", "message"),
    [
        ({"num_context": 3}, 4, "a context of 4 documents: the model has 3 slots"),
        ({"null_vector": False}, 3, "3 documents: .* no null vector to fill its 4 slots.*; pass 4"),
    ],
)
def test_a_context_that_does_not_fit_is_refused(
    settings: dict[str, Any], documents: int, message: str
) -> None:
    model = contextual(**settings)
    with pytest.raises(UserError, match=message):
        model(TEXTS, torch.zeros(documents, WIDTH).double())


def test_dropout_without_a_null_vector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"context_dropout = 0.005: drops to the null vector"):
        ContextualConfig(null_vector=False)


def test_positions_that_leave_no_room_for_text_are_refused() -> None:
    with pytest.raises(UserError, match="tiny: reads 64 tokens, and 63 positions are taken"):
        contextual(position_free=False, num_context=63)
