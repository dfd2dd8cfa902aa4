"""The layouts of the released checkpoints, against the description read with plain torch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from support.cde_checkpoints import SLOTS, reference, write

from embedkit.errors import UserError
from embedkit.models.contextual.export import write_contextual
from embedkit.models.contextual.loading import load_contextual
from embedkit.tokens.batch import TokenBatch

DOCUMENTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]
TEXTS = [[20, 21, 22, 23], [24, 25, 26], [27, 28, 29, 30, 31, 32, 33, 34]]
BATCH = TokenBatch.from_lists(TEXTS, [2, 2, 2])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_released_layout_computes_what_its_description_says(version: str, tmp_path: Path) -> None:
    weights = write(tmp_path, version)
    model = load_contextual(str(tmp_path)).double()
    context = model.embed_context(TokenBatch.from_lists(DOCUMENTS))
    expected = torch.stack([reference(version, weights, DOCUMENTS, text) for text in TEXTS])
    # Angles are computed in fp32.
    torch.testing.assert_close(model(BATCH, context), expected, rtol=1e-5, atol=1e-6)
    assert (expected[0] - expected[1]).norm() > 0.01
    other = [[7, 7], *DOCUMENTS[1:]]
    moved = reference(version, weights, other, TEXTS[0]) - expected[0]
    assert moved.norm() > 1e-3


# Only NomicBERT's context has no positions in the released code.
@pytest.mark.parametrize(("version", "free"), [("v1", True), ("v2", False)])
def test_the_order_of_the_context_is_what_the_release_makes_of_it(
    version: str, free: bool, tmp_path: Path
) -> None:
    write(tmp_path, version)
    model = load_contextual(str(tmp_path)).double()
    context = model.embed_context(TokenBatch.from_lists(DOCUMENTS))
    moved = (model(BATCH, context) - model(BATCH, context.flip(0))).abs().max()
    assert (moved < 1e-9) == free


def test_every_setting_of_a_release_is_read(tmp_path: Path) -> None:
    write(tmp_path, "v2")
    config = load_contextual(str(tmp_path)).config
    assert config.num_context == config.first_position == SLOTS
    assert (config.soft_prompts, config.entry) == (8, "published")
    assert (config.output_residual, config.include_prompt) == (True, False)
    assert {config.null_vector, config.context_norm, bool(config.context_dropout)} == {False}
    write(tmp_path, "v1")
    model = load_contextual(str(tmp_path))
    assert (model.config.output_residual, model.config.include_prompt) == (False, True)
    assert model.prompts == {"query": "search_query: ", "document": "search_document: "}
    assert model.max_tokens == 40


def test_a_null_vector_is_read_where_there_is_one(tmp_path: Path) -> None:
    write(tmp_path, "v1", transductive_sequence_dropout_prob=0.005)
    weights = load_file(tmp_path / "model.safetensors")
    null = torch.randn(128)
    weights["second_stage_model.sequence_dropout_null_embedding"] = null
    save_file(weights, tmp_path / "model.safetensors")
    model = load_contextual(str(tmp_path))
    assert model.config.context_dropout == 0.005
    assert model.slots.null is not None
    assert torch.equal(model.slots.null, null)
    model(BATCH, torch.zeros(0, 128))


def test_without_a_null_vector_the_context_is_whole(tmp_path: Path) -> None:
    write(tmp_path, "v1")
    with pytest.raises(UserError, match="no null vector to fill its 4 slots with"):
        load_contextual(str(tmp_path))(BATCH, torch.zeros(3, 128))


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_release_leaves_as_a_folder_of_ours(version: str, tmp_path: Path) -> None:
    write(tmp_path, version)
    model = load_contextual(str(tmp_path))
    write_contextual(model, tmp_path / "ours")
    theirs: Any = SentenceTransformer(str(tmp_path / "ours"), device="cpu", trust_remote_code=True)[
        0
    ]
    context = model.embed_context(TokenBatch.from_lists(DOCUMENTS))
    ids, mask = BATCH.padded(0)
    features = {"input_ids": ids, "attention_mask": mask, "prompt_length": 2}
    found = theirs(features, dataset_embeddings=context.detach())["sentence_embedding"]
    torch.testing.assert_close(found, model(BATCH, context), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"autoregressive_backbone": True}, "autoregressive_backbone = True is not read"),
        ({"transductive_tie_token_embeddings": True}, "tie_token_embeddings = True is not read"),
        ({"transductive_tokens_per_document": 4}, "tokens_per_document = 4 is not read"),
    ],
)
def test_what_embedkit_does_not_compute_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, "v1", **changes)
    with pytest.raises(UserError, match=message):
        load_contextual(str(tmp_path))


def test_other_weights_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "v1")
    weights = load_file(tmp_path / "model.safetensors")
    lacking = {k: v for k, v in weights.items() if not k.endswith("emb_ln.weight")}
    save_file(lacking, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="no NomicBERTs and no ModernBERTs"):
        load_contextual(str(tmp_path))
    cut = {k: v for k, v in weights.items() if "backbone.encoder.layers.1.norm1" not in k}
    save_file(cut, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"second encoder do not fit .*Missing key"):
        load_contextual(str(tmp_path))
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"has no second_stage_model\.\* weights"):
        load_contextual(str(tmp_path))


def test_a_release_without_its_tokenizer_says_what_to_pass(tmp_path: Path) -> None:
    write(tmp_path, "v1")
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="has no tokenizer; copy into it that of"):
        load_contextual(str(tmp_path))
