"""Every architecture of the paper's Table 4, tiny and random: one command trains them all."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.bare_venv import run_bare
from support.small_runs import metrics_of
from support.tiny_bert import real_tokenizer
from support.tiny_neobert import tiny_neobert
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    DebertaV2Tokenizer,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaModel,
    RobertaTokenizer,
)

from embedkit.api import finetune
from embedkit.errors import UserError
from embedkit.models import hub, lora
from embedkit.models.neobert import NeoBERTModel
from embedkit.models.neobert.state_dict import load_pretrained
from embedkit.recipe import Lora, load_recipe

TEXTS = ["amber birch", "", "Cedar, delta; ember?", "fjord grove heron inlet " * 60]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    # At the default of 0.02 all vectors of a random model are nearly one.
    "initializer_range": 0.2,
}


def byte_level_bpe() -> PreTrainedTokenizerBase:
    """RoBERTa's kind of tokenizer."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXTS, vocab_size=300, special_tokens=special, show_progress=False)
    content = json.loads(trained.to_str())["model"]
    merges: Any = [tuple(pair) for pair in content["merges"]]
    return RobertaTokenizer(vocab=content["vocab"], merges=merges)


def unigram() -> PreTrainedTokenizerBase:
    """DeBERTaV3's kind of tokenizer."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=special, unk_token="[UNK]", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    vocabulary = [tuple(each) for each in json.loads(tokenizer.to_str())["model"]["vocab"]]
    return DebertaV2Tokenizer(vocab=vocabulary, unk_id=special.index("[UNK]"))


def stock(model: Any, config: Any, **own: Any) -> Callable[[int, int], PreTrainedModel]:
    def build(vocabulary: int, pad: int) -> PreTrainedModel:
        built: PreTrainedModel = model(
            config(**SIZES, vocab_size=vocabulary, pad_token_id=pad, **own)
        )
        return built

    return build


def neobert(vocabulary: int, _pad: int) -> PreTrainedModel:
    return tiny_neobert(vocab_size=vocabulary, max_position_embeddings=160)


# By model_type: the tokenizer, the model, and how many tokens it reads.
ARCHITECTURES: dict[
    str,
    tuple[Callable[[], PreTrainedTokenizerBase], Callable[[int, int], PreTrainedModel], int],
] = {
    "bert": (real_tokenizer, stock(BertModel, BertConfig, max_position_embeddings=96), 96),
    # RoBERTa counts positions from behind its padding row.
    "roberta": (
        byte_level_bpe,
        stock(RobertaModel, RobertaConfig, max_position_embeddings=98, type_vocab_size=1),
        96,
    ),
    # As DeBERTaV3: relative positions alone, in shared buckets.
    "deberta-v2": (
        unigram,
        stock(
            DebertaV2Model,
            DebertaV2Config,
            max_position_embeddings=96,
            relative_attention=True,
            position_buckets=16,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
        ),
        96,
    ),
    "nomic_bert": (
        real_tokenizer,
        stock(NomicBertModel, NomicBertConfig, head_dim=16, max_position_embeddings=160),
        160,
    ),
    "modernbert": (
        real_tokenizer,
        stock(
            ModernBertModel,
            ModernBertConfig,
            max_position_embeddings=160,
            local_attention=16,
            layer_types=["full_attention", "sliding_attention"],
        ),
        160,
    ),
    "neobert": (real_tokenizer, neobert, 160),
}


def write_backbone(name: str, folder: Path) -> Path:
    make_tokenizer, build, _ = ARCHITECTURES[name]
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        build(len(tokenizer), tokenizer.pad_token_id or 0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of an architecture, two steps long; it is made when it is first asked for."""
    root = tmp_path_factory.mktemp("architectures")
    return partial(train_once, small_recipe, root)


def train_once(small_recipe: Path, root: Path, name: str) -> Path:
    run = root / name
    if not run.exists():
        backbone = write_backbone(name, root / f"backbone-{name}")
        finetune(load_recipe(str(small_recipe), ["steps=2", f"model={backbone}"]), run)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_trains_and_exports_without_code(
    name: str, trained: Callable[[str], Path]
) -> None:
    run = trained(name)
    assert [line["step"] for line in metrics_of(run)] == [1, 2]
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["model_type"] == ("eurobert" if name == "neobert" else name)
    assert "auto_map" not in config
    assert not [path.name for path in (run / "model").iterdir() if path.suffix in (".py", ".bin")]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_keeps_its_own_tokenizer_and_length(
    name: str, trained: Callable[[str], Path]
) -> None:
    run = trained(name)
    own = AutoTokenizer.from_pretrained(run.with_name(f"backbone-{name}"))
    exported = hub.load(str(run / "model"))
    assert exported.max_tokens == ARCHITECTURES[name][2]
    assert exported.tokenizer("Cedar, delta")["input_ids"] == own("Cedar, delta")["input_ids"]
    # Cut at its own length: it is read to the end, and no further.
    assert np.isfinite(exported.encode([TEXTS[-1]])).all()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_training_moves_the_weights_of_an_architecture(
    name: str, trained: Callable[[str], Path]
) -> None:
    run = trained(name)
    before = hub.load(str(run.with_name(f"backbone-{name}")))
    after = hub.load(str(run / "model"))
    first, second = (m.encode(TEXTS[:1], normalize_embeddings=True) for m in (before, after))
    assert 0 < float(np.abs(first - second).max()) < 1


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_adapters_stand_in_every_layer_of_an_architecture_and_merge(
    name: str, tmp_path: Path
) -> None:
    embedder = hub.load(str(write_backbone(name, tmp_path)))
    network = embedder.backbone.model
    before = embedder.encode(TEXTS)
    lora.attach(network, Lora(rank=2), seed=1)
    adapters = [each for each in network.parameters() if each.requires_grad]
    for each in adapters:
        torch.nn.init.normal_(each, std=0.3)
    trained = embedder.encode(TEXTS)
    assert np.abs(trained - before).max() > 1e-2
    lora.merge(network)
    np.testing.assert_allclose(embedder.encode(TEXTS), trained, atol=1e-5, rtol=1e-4)
    # Two matrices for each linear layer of both blocks: four at the least.
    assert len(adapters) >= 2 * 2 * 4


ELSEWHERE = """
import importlib.util, sys
import numpy as np
assert importlib.util.find_spec("embedkit") is None
from sentence_transformers import SentenceTransformer
for name in {names!r}:
    model = SentenceTransformer(f"{{name}}/model", device="cpu")
    np.save(f"{{sys.argv[1]}}/{{name}}.npy", model.encode({texts!r}))
"""


@pytest.mark.slow
def test_every_architecture_opens_where_embedkit_is_absent(
    trained: Callable[[str], Path], bare_python: Path, tmp_path: Path
) -> None:
    runs = {name: trained(name) for name in ARCHITECTURES}
    code = ELSEWHERE.format(names=list(runs), texts=TEXTS)
    run_bare([bare_python, "-c", code, tmp_path], cwd=runs["bert"].parent)
    for name, run in runs.items():
        expected = hub.load(str(run / "model")).encode(TEXTS)
        np.testing.assert_allclose(
            np.load(tmp_path / f"{name}.npy"), expected, atol=1e-5, err_msg=name
        )


@pytest.fixture
def sentencepiece_alone(tmp_path: Path) -> Path:
    """A DeBERTa as its authors publish it: with ``spm.model`` and no ``tokenizer.json``."""
    sentencepiece = pytest.importorskip("sentencepiece")
    write_backbone("deberta-v2", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=40,
        hard_vocab_limit=False,
        control_symbols="[PAD],[CLS],[SEP],[MASK]",
        unk_piece="[UNK]",
        minloglevel=2,
    )
    return tmp_path


def test_a_sentencepiece_model_becomes_a_tokenizer(sentencepiece_alone: Path) -> None:
    tokenizer: Any = hub.load_tokenizer(str(sentencepiece_alone))
    ids = tokenizer("amber birch")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[0] == "[CLS]"
    assert tokenizer.unk_token_id not in ids


def test_a_missing_sentencepiece_is_named_with_its_extra(
    sentencepiece_alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.setattr(hub, "is_sentencepiece_available", lambda: False)
    with pytest.raises(UserError, match=r"pip install \"embedkit-neobert\[deberta\]\""):
        hub.load_tokenizer(str(sentencepiece_alone))


@pytest.mark.parametrize("name", ["bert", "neobert"])
def test_pickled_weights_are_refused_with_the_conversion(name: str, tmp_path: Path) -> None:
    folder = write_backbone(name, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin.*python -c .*save_pretrained"):
        hub.load(str(folder))


@pytest.mark.parametrize("load", [hub.load, partial(load_pretrained, NeoBERTModel)])
def test_a_checkpoint_of_deepspeed_is_refused_with_the_conversion(
    load: Callable[[str], object], tmp_path: Path
) -> None:
    (tmp_path / "zero_to_fp32.py").touch()
    with pytest.raises(UserError, match=rf"python {tmp_path}/zero_to_fp32\.py {tmp_path} safe"):
        load(str(tmp_path))
