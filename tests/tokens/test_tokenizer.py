import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from support.tiny_bert import MINILM, real_tokenizer, tiny_bert
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from embedkit.models import hub
from embedkit.recipe import ModelSettings
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.tokenizer import (
    Tokenize,
    identity_of,
    lowercased,
    save_tokenizer,
    without_truncation,
)

LONG = "word " * 300
QUERY = "Represent this sentence for searching: "


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return real_tokenizer()


@pytest.fixture(scope="module")
def tokenize(tokenizer: PreTrainedTokenizerBase) -> Tokenize:
    return Tokenize(tokenizer)


def decoded(tokenizer: PreTrainedTokenizerBase, tokens: TokenBatch) -> list[str]:
    parts = tokens.ids.split(tokens.lengths.tolist())
    return [str(tokenizer.decode(part)) for part in parts]


def test_the_starters_own_file_cuts_and_pads_at_128() -> None:
    # What the next tests are about; should the package change, they prove nothing.
    stored = json.loads(Path(f"{MINILM}/tokenizer.json").read_text())
    assert stored["truncation"]["max_length"] == 128
    assert stored["padding"]["strategy"] == {"Fixed": 128}


def test_what_the_file_says_is_switched_off() -> None:
    fresh = real_tokenizer()
    backend = fresh.backend_tokenizer
    assert (backend.truncation is None, backend.padding is None) == (False, False)
    Tokenize(fresh)
    assert (backend.truncation, backend.padding) == (None, None)


def test_a_saved_tokenizer_does_not_tell_whether_the_hub_was_in_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {}
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        folder = tmp_path / str(offline)
        tokenizer = AutoTokenizer.from_pretrained(MINILM)
        assert tokenizer.init_kwargs["local_files_only"] is offline
        save_tokenizer(tokenizer, folder)
        stored[offline] = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "tokenizer_config.json" in stored[True]
    assert stored[True] == stored[False]


def test_identifying_a_tokenizer_changes_nothing() -> None:
    fresh = real_tokenizer()
    before = fresh.backend_tokenizer.to_str()
    identity = identity_of(fresh)
    assert fresh.backend_tokenizer.to_str() == before
    without_truncation(fresh)
    assert identity_of(fresh) == identity


def test_a_lowercased_tokenizer_keeps_the_limits_of_its_file() -> None:
    backend = real_tokenizer().backend_tokenizer
    lower: Any = lowercased(real_tokenizer())
    assert lower.backend_tokenizer.truncation == backend.truncation
    assert lower.backend_tokenizer.padding == backend.padding


def test_nothing_is_padded(tokenize: Tokenize) -> None:
    assert tokenize(["one", "one two three"], "", 512).lengths.tolist() == [3, 5]


@pytest.mark.parametrize(("limit", "length"), [(2, 2), (3, 3), (60, 60), (128, 128), (400, 302)])
def test_the_given_limit_alone_cuts(tokenize: Tokenize, limit: int, length: int) -> None:
    tokens = tokenize([LONG, "short"], "", limit)
    assert tokens.lengths.tolist() == [length, min(limit, 3)]
    assert tokens.ids[0] == 101
    assert tokens.ids[length - 1] == 102


def test_a_limit_is_forgotten_after_use(
    tokenize: Tokenize, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenize([LONG], QUERY, 16)
    assert tokenize([LONG], "", 512).num_tokens == 302
    assert len(tokenizer(LONG, verbose=False)["input_ids"]) == 302


def test_a_prompt_stands_before_every_text(
    tokenize: Tokenize, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens = tokenize(["one", "two"], QUERY, 512)
    assert decoded(tokenizer, tokens) == [
        "[CLS] represent this sentence for searching : one [SEP]",
        "[CLS] represent this sentence for searching : two [SEP]",
    ]


def test_the_length_of_a_prompt_counts_the_opening_token(tokenize: Tokenize) -> None:
    tokens = tokenize(["one", "two three"], QUERY, 512)
    assert tokens.prompt_lengths.tolist() == [7, 7]
    assert tokens.lengths.tolist() == [9, 10]


def test_without_a_prompt_no_token_is_prompt(tokenize: Tokenize) -> None:
    assert tokenize(["one"], "", 512).prompt_lengths.tolist() == [0]


def test_a_prompt_that_ends_in_special_tokens_is_counted_whole(tokenize: Tokenize) -> None:
    # As the NeoBERT authors separate an instruction from its text.
    tokens = tokenize(["text"], "find answers[SEP] [CLS]", 512)
    assert tokens.ids.tolist() == [101, 2424, 6998, 102, 101, 3793, 102]
    assert tokens.prompt_lengths.tolist() == [5]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose vocabulary begins its words with their space."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        ["find: fever with chills", "a fever, find: a cold"] * 20,
        vocab_size=320,
        min_frequency=1,
        special_tokens=["<s>", "<pad>", "</s>"],
        show_progress=False,
    )
    trained.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    folder = tmp_path_factory.mktemp("bpe")
    PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        sep_token="</s>",
        eos_token="</s>",
        pad_token="<pad>",
    ).save_pretrained(folder)
    tiny_bert(vocabulary=400).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("prompt", "length"), [("find: ", 4), ("find:", 3)])
def test_a_prompt_is_as_long_as_sentence_transformers_counts_it(
    prompt: str, length: int, bpe: Path
) -> None:
    ours = hub.load(str(bpe), settings=ModelSettings(pooling="mean", include_prompt=False))
    texts = ["fever with chills", " a cold"]
    tokens = Tokenize(ours.tokenizer)(texts, prompt, 64)
    assert tokens.prompt_lengths.tolist() == [length, length]
    # Of the first text, the last of these tokens would be a part; it is left out there as here.
    transformer = Transformer(str(bpe), max_seq_length=64)
    theirs = SentenceTransformer(
        modules=[transformer, Pooling(32, pooling_mode="mean", include_prompt=False), Normalize()],
        device="cpu",
    )
    expected = theirs.encode(texts, prompt=prompt, show_progress_bar=False)
    vectors = ours.encode(texts, prompt=prompt, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_prompt_is_no_longer_than_what_the_limit_leaves(tokenize: Tokenize) -> None:
    tokens = tokenize(["one"], QUERY, 4)
    assert tokens.lengths.tolist() == tokens.prompt_lengths.tolist() == [4]


def test_an_empty_text_is_its_special_tokens(tokenize: Tokenize) -> None:
    assert torch.equal(tokenize([""], "", 512).ids, torch.tensor([101, 102]))
