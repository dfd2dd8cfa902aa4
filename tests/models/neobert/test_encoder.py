from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small_neobert import SEQUENCES, batch, padded, small_config, small_encoder
from torch import Tensor

from embedkit.errors import UserError
from embedkit.models.neobert import NeoBERTModel

ABLATIONS = [
    {},
    {"position": "absolute"},
    {"hidden_act": "gelu"},
    {"norm": "layernorm"},
    {"position": "absolute", "hidden_act": "gelu", "norm": "layernorm"},
]


def alone(model: NeoBERTModel, sequences: list[list[int]] = SEQUENCES) -> Tensor:
    """Hidden states with every sequence read by itself."""
    return torch.cat([model.encode_tokens(batch([ids])) for ids in sequences])


def gradients_of(model: NeoBERTModel, states: Tensor) -> dict[str, Tensor]:
    weights = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)
    (states * weights).sum().backward()
    found = {name: each.grad for name, each in model.named_parameters()}
    assert all(each is not None for each in found.values())
    return {name: each.clone() for name, each in found.items() if each is not None}


@pytest.mark.parametrize("changes", ABLATIONS, ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_batch_gives_each_sequence_the_states_it_has_alone(
    changes: dict[str, Any], attention: str
) -> None:
    model = small_encoder(attn_implementation=attention, **changes)
    states = model.encode_tokens(batch())
    torch.testing.assert_close(states, alone(model), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("changes", ABLATIONS, ids=str)
def test_padding_changes_nothing_and_its_states_are_zero(changes: dict[str, Any]) -> None:
    model = small_encoder(**changes)
    input_ids, mask = batch().padded(0)
    padded = model(input_ids, mask).last_hidden_state
    torch.testing.assert_close(padded[mask.bool()], model.encode_tokens(batch()))
    assert not padded[~mask.bool()].any()


def test_padding_changes_no_gradient() -> None:
    input_ids, mask = batch().padded(0)
    unpadded, padded = small_encoder(), small_encoder()
    expected = gradients_of(unpadded, unpadded.encode_tokens(batch()))
    found = gradients_of(padded, padded(input_ids, mask).last_hidden_state[mask.bool()])
    torch.testing.assert_close(found, expected)


def test_padding_may_stand_in_front() -> None:
    model = small_encoder()
    left = torch.tensor([[0, 0, 5, 6, 7], [9, 10, 11, 12, 13]])
    states = model(left, (left > 0).long()).last_hidden_state
    torch.testing.assert_close(states[0, 2:], model.encode_tokens(batch([[5, 6, 7]])))


def test_without_a_mask_nothing_is_padding() -> None:
    model = small_encoder()
    states = model(torch.tensor([[5, 0, 7], [0, 8, 9]])).last_hidden_state
    assert torch.equal(states.flatten(0, 1), model.encode_tokens(batch([[5, 0, 7], [0, 8, 9]])))


@pytest.mark.parametrize(("attention", "tolerance"), [("eager", 0.0), ("sdpa", 1e-5)])
def test_a_document_never_sees_another(attention: str, tolerance: float) -> None:
    model = small_encoder(attn_implementation=attention).float()
    changed = [*SEQUENCES[:2], [50, 51, 52, 53, 54, 55, 56], *SEQUENCES[3:]]
    before, after = model.encode_tokens(batch()), model.encode_tokens(batch(changed))
    others = torch.ones(len(before), dtype=torch.bool)
    others[4:11] = False
    torch.testing.assert_close(after[others], before[others], atol=tolerance, rtol=0)
    assert not torch.isclose(after[4:11], before[4:11]).all(1).any()


def test_a_document_gets_no_gradient_from_another() -> None:
    model = small_encoder()
    states = model.encode_tokens(batch())
    states[4:11].square().sum().backward()
    assert isinstance(model.encoder.weight.grad, Tensor)
    reached = model.encoder.weight.grad.any(1).nonzero().squeeze(1).tolist()
    assert reached == SEQUENCES[2]


def test_embeddings_may_be_given_in_place_of_ids() -> None:
    model = small_encoder()
    input_ids, mask = batch().padded(0)
    expected = model(input_ids, mask).last_hidden_state
    embeddings = model.get_input_embeddings()(input_ids)
    found = model(attention_mask=mask, inputs_embeds=embeddings).last_hidden_state
    assert torch.equal(found, expected)


def test_positions_may_be_given() -> None:
    model = small_encoder()
    input_ids, mask = batch().padded(0)
    places = torch.arange(input_ids.shape[1])[None]
    expected = model(input_ids, mask).last_hidden_state
    assert torch.equal(model(input_ids, mask, places).last_hidden_state, expected)
    shifted = model(input_ids, mask, places + 10_000).last_hidden_state
    torch.testing.assert_close(shifted, expected)
    spread = model(input_ids, mask, 2 * places).last_hidden_state
    assert (spread - expected).abs().max() > 0.1


def test_a_sequence_may_be_longer_than_the_config_says() -> None:
    model = small_encoder(max_position_embeddings=16)
    ids = [place % 90 + 1 for place in range(40)]
    assert model.encode_tokens(batch([ids])).isfinite().all()


def test_embedded_positions_end_where_the_config_says() -> None:
    model = small_encoder(position="absolute", max_position_embeddings=6)
    assert model.state_dict()["positional_embedding.weight"].shape[0] == 7
    assert model.encode_tokens(batch([[1, 2, 3, 4, 5, 6]])).isfinite().all()
    with pytest.raises(UserError, match="a sequence of 7 tokens: the model has 6 positions"):
        model.encode_tokens(batch([[1, 2], [1, 2, 3, 4, 5, 6, 7]]))


def test_the_first_ablation_is_a_bert_with_its_norms_in_front() -> None:
    model = small_encoder(
        position="absolute", hidden_act="gelu", norm="layernorm", num_hidden_layers=1
    )
    weights = model.state_dict()
    for name in weights:
        if "norm" in name:
            weights[name].add_(torch.linspace(-0.5, 0.5, 32))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (32,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    block = "transformer_encoder.0"
    x = weights["encoder.weight"][[7, 8, 9]] + weights["positional_embedding.weight"][[1, 2, 3]]
    qkv = norm(x, f"{block}.attention_norm") @ weights[f"{block}.qkv.weight"].T
    q, k, v = qkv.view(3, 2, 3, 16).permute(2, 1, 0, 3)
    attended = (q @ k.mT / 4).softmax(-1) @ v
    x = x + attended.transpose(0, 1).reshape(3, 32) @ weights[f"{block}.wo.weight"].T
    inner = F.gelu(norm(x, f"{block}.ffn_norm") @ weights[f"{block}.ffn.up.weight"].T)
    x = x + inner @ weights[f"{block}.ffn.down.weight"].T
    found = model.encode_tokens(batch([[7, 8, 9]]))
    torch.testing.assert_close(found, norm(x, "layer_norm"), atol=1e-12, rtol=1e-12)


def test_yarn_changes_states_the_more_the_longer_the_sequence() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    plain, stretched = small_encoder(), small_encoder(rope_parameters=yarn)
    ids = [place % 90 + 1 for place in range(64)]
    changes = [
        (stretched.encode_tokens(batch([ids])) - plain.encode_tokens(batch([ids]))).norm()
        for ids in (ids[:2], ids)
    ]
    assert changes[1] > changes[0] > 0


def test_hidden_states_go_from_the_embeddings_to_the_result() -> None:
    model = small_encoder()
    inputs = padded()
    given = model(**inputs, output_hidden_states=True)
    assert len(given.hidden_states) == model.config.num_hidden_layers + 1
    first = given.hidden_states[0][inputs["attention_mask"].bool()]
    assert torch.equal(first, model.encoder(batch().ids))
    assert torch.equal(given.hidden_states[-1], given.last_hidden_state)
    assert model(**inputs).hidden_states is None


def test_gradient_checkpointing_changes_no_gradient() -> None:
    plain, checkpointed = small_encoder().train(), small_encoder().train()
    checkpointed.activation_checkpointing_enable()
    runs = []
    checkpointed.transformer_encoder[0].wo.register_forward_hook(lambda *_: runs.append(1))
    expected = gradients_of(plain, plain.encode_tokens(batch()))
    found = gradients_of(checkpointed, checkpointed.encode_tokens(batch()))
    assert len(runs) == 2
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_weights_start_uniform_and_norms_at_one() -> None:
    model = NeoBERTModel(small_config(embedding_init_range=0.5, decoder_init_range=0.1))
    limits = {"encoder": 0.5, "positional_embedding": 0.5}
    for name, weight in model.named_parameters():
        if "norm" in name:
            assert (weight == 1).all()
        else:
            limit = limits.get(name.split(".")[0], 0.1)
            assert 0.95 * limit < weight.abs().max() <= limit
            assert weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.1)


def test_the_model_has_no_buffer_to_lose() -> None:
    assert not list(small_encoder().buffers())


def test_embeddings_can_be_exchanged() -> None:
    model = small_encoder()
    model.resize_token_embeddings(120)
    assert model.get_input_embeddings() is model.encoder
    assert model.encoder.weight.shape[0] == model.config.vocab_size == 120
    assert model.encode_tokens(batch([[119]])).isfinite().all()


def test_autocast_keeps_the_residual_stream_wide() -> None:
    model = small_encoder().float()
    with torch.autocast("cpu", torch.bfloat16):
        states = model.encode_tokens(batch())
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, model.encode_tokens(batch()), atol=0.1, rtol=0.1)


@pytest.mark.slow
def test_a_block_compiles_as_one_graph() -> None:
    plain, compiled = (small_encoder(num_hidden_layers=1) for _ in range(2))
    for block in compiled.transformer_encoder:
        block.compile(backend="eager", fullgraph=True)
    expected = gradients_of(plain, plain.encode_tokens(batch()))
    found = gradients_of(compiled, compiled.encode_tokens(batch()))
    torch.testing.assert_close(found, expected)
    assert compiled.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_half_precision_on_the_gpu_agrees_with_double_precision_here() -> None:
    expected = small_encoder().encode_tokens(batch())
    model = small_encoder().float().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        found = model.encode_tokens(batch().to(torch.device("cuda")))
    torch.testing.assert_close(found.double().cpu(), expected, atol=0.1, rtol=0.1)


def test_a_call_names_exactly_one_input() -> None:
    model = small_encoder()
    ids = torch.tensor([[1]])
    for given in ({}, {"input_ids": ids, "inputs_embeds": torch.ones(1, 1, 32)}):
        with pytest.raises(UserError, match="pass exactly one of input_ids and inputs_embeds"):
            model(**given)
