"""A checkpoint loads whatever head it has, unless it has weights that its config does not."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_bert import real_tokenizer
from support.tiny_neobert import tiny_masked_lm, tiny_neobert, write_with_tokenizer
from transformers import (
    MODEL_MAPPING,
    AlbertConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BartConfig,
    BartModel,
    BertConfig,
    BertForMaskedLM,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    EuroBertConfig,
    ModernBertConfig,
    MPNetConfig,
    NomicBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    XLMRobertaConfig,
    XLNetConfig,
)

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.export import export

WORDS: dict[str, Any] = {"vocab_size": 64, "pad_token_id": 0}
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    **WORDS,
}
MARKS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "bert": lambda: BertConfig(**SIZES),
    "modernbert": lambda: ModernBertConfig(**SIZES, **MARKS),
    "roberta": lambda: RobertaConfig(**SIZES),
    "xlm-roberta": lambda: XLMRobertaConfig(**SIZES),
    "deberta-v2": lambda: DebertaV2Config(**SIZES, relative_attention=True),
    "mpnet": lambda: MPNetConfig(**SIZES),
    "distilbert": lambda: DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **WORDS),
    "electra": lambda: ElectraConfig(**SIZES, embedding_size=8),
    "albert": lambda: AlbertConfig(**SIZES, embedding_size=8),
    "nomic_bert": lambda: NomicBertConfig(**SIZES, head_dim=8),
    "eurobert": lambda: EuroBertConfig(**SIZES, bos_token_id=1, eos_token_id=2, mask_token_id=3),
    "xlnet": lambda: XLNetConfig(d_model=16, n_layer=2, n_head=2, d_inner=32, **WORDS),
}
QUICK = {"bert", "modernbert"}
NAMES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CONFIGS]


def classes_of(config: PreTrainedConfig) -> list[Any]:
    """All classes of models that transformers has for ``config``, the bare encoder among them."""
    module = sys.modules[MODEL_MAPPING[type(config)].__module__]
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, PreTrainedModel)
        and getattr(each, "config_class", None) is type(config)
        and not each.__name__.endswith("PreTrainedModel")
    ]


def written(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    real_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_with_a_head_is_read_as_its_encoder(name: str, tmp_path: Path) -> None:
    classes = classes_of(CONFIGS[name]())
    assert len(classes) > 2
    for each in classes:
        model = each(CONFIGS[name]())
        folder = written(model, tmp_path / each.__name__)
        loaded = hub.load(str(folder)).backbone.model.state_dict()
        expected = AutoModel.from_pretrained(folder).state_dict()
        stored = {id_: weight for id_, weight in expected.items() if "pooler" not in id_}
        assert {id_ for id_ in loaded if "pooler" not in id_} == stored.keys()
        for id_, weight in stored.items():
            assert torch.equal(loaded[id_], weight), f"{each.__name__}: {id_}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name.values[0] != "xlnet"])
def test_a_masked_language_model_is_read_from_every_class_that_has_its_head(
    name: str, tmp_path: Path
) -> None:
    whole = 0
    for each in classes_of(CONFIGS[name]()):
        folder = written(each(CONFIGS[name]()), tmp_path / each.__name__)
        _, report = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
        if not report["missing_keys"]:
            whole += 1
            hub.load_masked_lm(str(folder))
    assert whole


def with_a_layer_less(config: dict[str, Any]) -> None:
    for key in ("num_hidden_layers", "n_layers", "n_layer"):
        if key in config:
            config[key] -= 1
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:-1]


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


# The layers of an ALBERT share their weights: none has one too many.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name.values[0] != "albert"])
def test_a_layer_that_the_config_does_not_count_is_not_dropped(name: str, tmp_path: Path) -> None:
    for each in classes_of(CONFIGS[name]()):
        folder = written(each(CONFIGS[name]()), tmp_path / each.__name__)
        edit_config(folder, with_a_layer_less)
        with pytest.raises(
            UserError, match=r"holds \d+ weights that its config.json has no pl"
        ) as e:
            hub.load(str(folder))
        assert "\n" not in str(e.value)
        assert "1." in str(e.value).partition("(")[2]


def test_a_masked_language_model_drops_no_layer_either(tmp_path: Path) -> None:
    folder = written(BertForMaskedLM(BertConfig(**SIZES)), tmp_path / "model")
    edit_config(folder, with_a_layer_less)
    with pytest.raises(
        UserError, match=r"holds 16 weights .* \(bert\.encoder\.layer\.1\.attention"
    ):
        hub.load_masked_lm(str(folder))


def add(folder: Path, *names: str) -> None:
    weights = load_file(folder / "model.safetensors")
    weights |= {name: torch.ones(2) for name in names}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_what_older_releases_stored_beside_the_weights_is_passed_over(tmp_path: Path) -> None:
    folder = written(BertForMaskedLM(BertConfig(**SIZES)), tmp_path / "model")
    add(folder, "bert.embeddings.position_ids", "cls.seq_relationship.weight", "bert.pooler.old")
    add(folder, "lm_predictions.lm_head.dense.weight", "bert.encoder.rotary_emb.inv_freq")
    hub.load(str(folder))
    hub.load_masked_lm(str(folder))


def test_a_head_that_transformers_does_not_know_is_not_dropped(tmp_path: Path) -> None:
    folder = written(BertForMaskedLM(BertConfig(**SIZES)), tmp_path / "model")
    add(folder, "linear.weight")
    with pytest.raises(
        UserError, match=r"holds 1 weights .* \(linear\.weight.*save the encoder wi"
    ):
        hub.load(str(folder))
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "encoder")
    real_tokenizer().save_pretrained(tmp_path / "encoder")
    hub.load(str(tmp_path / "encoder"))


def test_a_decoder_with_layers_too_many_is_no_head(tmp_path: Path) -> None:
    config = BartConfig(
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=40,
        vocab_size=64,
    )
    folder = written(BartModel(config), tmp_path / "model")
    hub.load(str(folder))
    edit_config(folder, lambda config: config.update(decoder_layers=1))
    with pytest.raises(UserError, match=r"\(decoder\.layers\.1\."):
        hub.load(str(folder))


@pytest.mark.parametrize("form", ["own", "eurobert", "neobert"])
def test_a_neobert_drops_no_layer_in_any_of_its_forms(form: Any, tmp_path: Path) -> None:
    folder = write_with_tokenizer(tiny_neobert(), tmp_path / "own")
    if form != "own":
        folder = export(str(folder), tmp_path / form, to=form)
    edit_config(folder, with_a_layer_less)
    with pytest.raises(UserError, match=r"weights|unexpected") as refused:
        hub.load(str(folder))
    assert "1." in str(refused.value)


def test_a_neobert_is_read_without_its_decoder(tmp_path: Path) -> None:
    folder = write_with_tokenizer(tiny_masked_lm(), tmp_path / "own")
    assert hub.load(str(folder)).backbone.model.num_parameters() > 0
