from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling
from support.tiny_bert import MINILM, tiny_embedder
from tokenizers.normalizers import BertNormalizer

from embedkit.errors import UserError
from embedkit.models import embedding_model, hub
from embedkit.models.embedder import Embedder
from embedkit.recipe import ModelSettings
from embedkit.recipe.finetune_recipe import STOCK_POOLINGS
from embedkit.tokens.batch import TokenBatch

TEXTS = [
    "Fever with chills",
    "def add(a, b):\n    return a + b",
    "",
    "Résumé — naïve café 北京",
    "A longer sentence, of the kind that a corpus is made of, with commas and a full stop.",
    "word " * 400,
    "x",
]
PROMPT = "Represent this sentence for searching relevant passages: "


@cache
def theirs(pooling: Any, *, include_prompt: bool, prompt: str) -> NDArray[np.float32]:
    """What sentence-transformers makes of ``TEXTS``."""
    transformer = Transformer(MINILM, max_seq_length=256)
    pool = TheirPooling(384, pooling_mode=pooling, include_prompt=include_prompt)
    model = SentenceTransformer(modules=[transformer, pool, Normalize()], device="cpu")
    vectors = model.encode(TEXTS, prompt=prompt or None, show_progress_bar=False)
    return np.asarray(vectors)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", STOCK_POOLINGS)
@pytest.mark.parametrize(("prompt", "include"), [("", True), (PROMPT, True), (PROMPT, False)])
def test_vectors_are_those_of_sentence_transformers(
    pooling: Any, prompt: str, include: bool
) -> None:
    ours = hub.load("starter", settings=ModelSettings(pooling=pooling, include_prompt=include))
    expected = theirs(pooling, include_prompt=include, prompt=prompt)
    np.testing.assert_allclose(ours.encode(TEXTS, prompt=prompt), expected, atol=1e-5)


def test_prompt_and_pooling_make_a_difference() -> None:
    # Or the test above would hold of an embedder that ignores them.
    found = [
        theirs("mean", include_prompt=True, prompt=""),
        theirs("mean", include_prompt=True, prompt=PROMPT),
        theirs("mean", include_prompt=False, prompt=PROMPT),
        theirs("cls", include_prompt=True, prompt=""),
    ]
    for number, one in enumerate(found):
        for other in found[number + 1 :]:
            assert np.abs(one - other).max() > 0.01


TOKENS = TokenBatch.from_lists([[2, 3, 4, 5], [6], [7, 8, 9]], [2, 0, 0])


def test_pooling_takes_the_first_or_the_mean_of_a_sequences_own_states() -> None:
    states = tiny_embedder().backbone(TOKENS)
    firsts = tiny_embedder(pooling="cls")(TOKENS)
    means = tiny_embedder(pooling="mean")(TOKENS)
    without = tiny_embedder(include_prompt=False)(TOKENS)
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(firsts, unit(states[[0, 4, 5]], dim=-1))
    expected = torch.stack([states[:4].mean(0), states[4], states[5:].mean(0)])
    torch.testing.assert_close(means, unit(expected, dim=-1))
    torch.testing.assert_close(without[0], unit(states[2:4].mean(0), dim=0))
    torch.testing.assert_close(without[1:], means[1:])
    behind = tiny_embedder(pooling="cls", include_prompt=False)(TOKENS)
    torch.testing.assert_close(behind, unit(states[[2, 4, 5]], dim=-1))


def test_a_text_that_its_prompt_has_pushed_out_is_no_nan() -> None:
    tokens = TokenBatch.from_lists([[2, 3], [4, 5]], [2, 0])
    vectors = tiny_embedder(include_prompt=False)(tokens)
    assert vectors.norm(dim=-1).tolist() == pytest.approx([0.0, 1.0])
    for pooling in STOCK_POOLINGS:
        assert tiny_embedder(pooling=pooling, include_prompt=False)(tokens).isfinite().all()
    firsts = tiny_embedder(pooling="cls", include_prompt=False)(tokens)
    torch.testing.assert_close(firsts, tiny_embedder(pooling="cls")(tokens))


def test_autocast_computes_in_bf16_and_pools_in_fp32() -> None:
    plain, half = tiny_embedder().float(), tiny_embedder().float()
    half.autocast = torch.bfloat16
    one, other = plain(TOKENS), half(TOKENS)
    assert other.dtype == torch.float32
    assert not torch.equal(one, other)
    torch.testing.assert_close(one, other, atol=0.05, rtol=0)
    torch.testing.assert_close(other.norm(dim=-1), torch.ones(3))


@pytest.fixture(scope="module")
def starter() -> Embedder:
    return hub.load("starter")


def test_texts_are_embedded_in_their_order_however_many_go_at_once(
    starter: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = starter.encode(TEXTS)
    monkeypatch.setattr(embedding_model, "_BATCH_TOKENS", 30)
    monkeypatch.setattr(embedding_model, "_MOST_TOKENS", 40)
    np.testing.assert_allclose(starter.encode(TEXTS), whole, atol=1e-5)


def test_no_texts_make_no_vectors(starter: Embedder) -> None:
    assert starter.encode([]).shape == (0, 384)


def test_one_text_has_one_vector_as_in_sentence_transformers(starter: Embedder) -> None:
    model = SentenceTransformer(MINILM, device="cpu")
    starter.prompts = {"query": "q: ", "document": "d: "}
    model.prompts = dict(starter.prompts)
    for name in ("encode", "encode_query", "encode_document"):
        expected = getattr(model, name)("Fever with chills")
        found = getattr(starter, name)("Fever with chills")
        assert found.shape == expected.shape == (384,)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    starter.prompts = {}


def test_tuples_and_arrays_are_lists_of_texts(tiny: Embedder) -> None:
    expected = tiny.encode(["a", "b"])
    given: tuple[Any, ...] = (("a", "b"), np.array(["a", "b"]), np.array(["a", "b"], dtype=object))
    for texts in given:
        assert np.array_equal(tiny.encode(texts), expected)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, r"texts = None: pass a str or a list of str"),
        (7, r"texts = 7: pass a str or a list of str"),
        (b"a", r"texts = b'a': pass a str or a list of str"),
        ({"a": "b"}, r"texts = {'a': 'b'}: pass a str or a list of str"),
        ({"a"}, r"texts = {'a'}: pass a str or a list of str"),
        ((text for text in ["a"]), r"texts = <generator .*>: pass a str or a list of str"),
        (["a", None, 7], r"texts\[1\] = None: every text must be a str"),
        ([["a"]], r"texts\[0\] = \['a'\]: every text must be a str"),
        (np.zeros(2), r"texts\[0\] = .*0\.0.*: every text must be a str"),
    ],
)
def test_what_is_no_text_is_refused(tiny: Embedder, given: Any, told: str) -> None:
    for encode in (tiny.encode, tiny.encode_query, tiny.encode_document):
        with pytest.raises(UserError, match=f"^{told}$"):
            encode(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"role": "qury"}, "role = 'qury': .* knows query, document, clustering"),
        ({"max_tokens": 0}, "max_tokens = 0: pass a number of tokens of 1 or more"),
        ({"max_tokens": -1}, "max_tokens = -1: pass"),
    ],
)
def test_a_role_or_a_length_that_means_nothing_is_refused(
    tiny: Embedder, given: Any, told: str
) -> None:
    tiny.prompts = {"clustering": "c: "}
    with pytest.raises(UserError, match=told):
        tiny.encode(["a"], **given)
    assert np.array_equal(tiny.encode(["a"], role="query"), tiny.encode(["a"]))


def test_queries_and_documents_get_the_models_prompts(tiny: Embedder) -> None:
    assert np.array_equal(tiny.encode_query(["a"]), tiny.encode(["a"]))
    tiny.prompts = {"query": "q: ", "document": "d: "}
    assert np.array_equal(tiny.encode_query(["a"]), tiny.encode(["q: a"]))
    assert np.array_equal(tiny.encode_document(["a"]), tiny.encode(["d: a"]))
    assert not np.array_equal(tiny.encode_query(["a"]), tiny.encode_document(["a"]))


@pytest.fixture
def tiny(tiny_model: Path) -> Embedder:
    return hub.load(str(tiny_model))


def test_encoding_knows_no_dropout_and_leaves_training_on(tiny: Embedder) -> None:
    expected = tiny.encode(["a text"])
    tiny.train()
    assert np.array_equal(tiny.encode(["a text"]), expected)
    assert tiny.training


def test_a_text_is_cut_at_the_models_length(tiny: Embedder) -> None:
    tiny.max_tokens = 4
    assert np.array_equal(tiny.encode(["one two three"]), tiny.encode(["one two other"]))


def change_a_weight(model: Embedder) -> None:
    with torch.no_grad():
        last = list(model.parameters())[-5]
        last.view(-1)[-1] += 1e-6


def change_the_type(model: Embedder) -> None:
    model.to(torch.bfloat16)


def change_the_network(model: Embedder) -> None:
    # The same weights, cut into other heads.
    model.backbone.model.config.num_attention_heads *= 2


def change_the_tokenizer(model: Embedder) -> None:
    backend: Any = model.tokenizer.backend_tokenizer
    backend.normalizer = BertNormalizer(lowercase=False)


def cut_at_the_front(model: Embedder) -> None:
    model.tokenizer.truncation_side = "left"


def set_to(name: str, value: object) -> Callable[[Embedder], None]:
    return lambda model: setattr(model, name, value)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change_a_weight, id="a weight"),
        pytest.param(change_the_network, id="the network"),
        pytest.param(change_the_tokenizer, id="the tokenizer"),
        pytest.param(change_the_type, id="the type of the weights"),
        pytest.param(set_to("autocast", torch.bfloat16), id="the type of the products"),
        pytest.param(set_to("prompts", {"query": "find: "}), id="the prompts"),
        pytest.param(set_to("pooling", "cls"), id="the pooling"),
        pytest.param(set_to("include_prompt", False), id="what is pooled"),
        pytest.param(set_to("max_tokens", 17), id="the length"),
        pytest.param(cut_at_the_front, id="where texts are cut"),
    ],
)
def test_the_identity_changes_with(change: Callable[[Embedder], None], tiny: Embedder) -> None:
    before = tiny.identity
    change(tiny)
    assert tiny.identity != before


def test_the_identity_is_of_the_model_and_not_of_its_name(tiny: Embedder) -> None:
    before = tiny.identity
    tiny.name = "other"
    tiny.train()
    tiny.encode(["what truncates and pads"])
    assert tiny.identity == before
    assert len(before) == 64
