"""Every pretraining recipe that ships: valid, of the published size, and it trains at toy width."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_runs import metrics_of
from support.tiny_bert import MINILM
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from embedkit import api
from embedkit.config import differences, shipped, validated
from embedkit.data.manifests.manifest import load_text_manifest
from embedkit.data.pairs.records import open_records
from embedkit.data.text.texts import Texts
from embedkit.models.neobert import NeoBERTForMaskedLM
from embedkit.pretraining.weights import architecture
from embedkit.recipe import PretrainRecipe, load_any_recipe, load_pretrain_recipe

NAMES = sorted(
    str(path.relative_to(shipped("recipes")).with_suffix(""))
    for path in shipped("recipes").rglob("*.toml")
    if isinstance(load_any_recipe(str(path)), PretrainRecipe)
)
PUBLISHED = {"neobert-1024", "neobert-4096", *(f"ablations/m{number}" for number in range(10))}
# Encoder and whole model in millions, computed from Table 2; the last two are the release's.
MILLIONS = {
    "ablations/m0": (108.81, 132.28),
    "ablations/m1": (108.39, 131.87),
    "ablations/m2": (108.39, 131.87),
    "ablations/m3": (109.58, 134.24),
    "ablations/m4": (108.39, 131.87),
    "ablations/m5": (108.39, 131.87),
    "ablations/m6": (108.39, 131.87),
    "ablations/m7": (246.37, 278.63),
    "ablations/m8": (221.67, 245.14),
    "ablations/m9": (221.67, 245.14),
    "neobert-1024": (221.67, 245.14),
    "neobert-4096": (221.67, 245.14),
}
SCALE = 64
"""How much shorter the sequences of the toys are."""


def test_the_published_recipes_ship() -> None:
    assert set(NAMES) >= {*PUBLISHED, "starter-mlm"}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_valid_and_so_are_its_manifests(name: str) -> None:
    recipe = load_pretrain_recipe(name)
    for each in recipe.data.mix:
        assert load_text_manifest(each.manifest).license


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_model_has_the_published_number_of_parameters(name: str) -> None:
    recipe = load_pretrain_recipe(name)
    assert recipe.model.vocab_size is not None
    with torch.device("meta"):
        network = NeoBERTForMaskedLM(architecture(recipe.model, recipe.model.vocab_size))
    counts = [sum(each.numel() for each in part.parameters()) for part in (network.model, network)]
    assert [round(count / 1e6, 2) for count in counts] == list(MILLIONS[name])


@pytest.fixture(scope="module")
def texts() -> Texts:
    """Definitions of the starter, long enough for views by length."""
    records = open_records("hpo_definition").take(range(300))
    rows = [record.positive for record in records]
    return Texts.from_rows([" ".join(rows[start : start + 3]) for start in range(0, 300, 3)])


@pytest.fixture(scope="module")
def bpe(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a BPE in the manner of LLaMA, with the special tokens that masking needs."""
    folder = tmp_path_factory.mktemp("bpe")
    special = ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, show_progress=False)
    records = open_records("hpo_definition").take(range(300))
    tokenizer.train_from_iterator((record.positive for record in records), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
    ).save_pretrained(folder)
    return str(folder)


def toy(name: str, tokenizer: str) -> PretrainRecipe:
    """The recipe at toy width and length; everything else stays."""
    tables = load_pretrain_recipe(name).model_dump(mode="json", exclude_none=True)
    tables.pop("init_from", None)
    model, data = tables["model"], tables["data"]
    heads = model["num_attention_heads"]
    model |= {"tokenizer": tokenizer, "num_hidden_layers": 2}
    model |= {"hidden_size": 4 * heads, "intermediate_size": 6 * heads}
    data["max_tokens"] //= SCALE
    data |= {"batch_tokens": 8 * data["max_tokens"], "draw_rows": 4, "workers": 0}
    data["mix"] = distinct_views(data["mix"])
    return validated(PretrainRecipe, {**tables, "steps": 2}, name)


def distinct_views(mix: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same mixture over one toy source; two sources of one length become one."""
    views = [each | {"manifest": "toy", "min_tokens": each["min_tokens"] // SCALE} for each in mix]
    return list({each["min_tokens"]: each for each in views}.values())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.usefixtures("native_bf16")
@pytest.mark.slow
def test_a_recipe_takes_two_steps_at_toy_width(
    name: str, texts: Texts, bpe: str, tmp_path: Path
) -> None:
    recipe = toy(name, bpe if name == "ablations/m3" else MINILM)
    api.pretrain(recipe, tmp_path / "run", sources={"toy": texts})
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["loss"] > 0 and line["masked"] > 0 for line in lines)


@pytest.mark.slow
def test_the_starter_takes_two_steps_on_its_own_text(tmp_path: Path) -> None:
    recipe = load_pretrain_recipe("starter-mlm", ["steps=2", "held_out.rows=8"])
    api.pretrain(recipe, tmp_path / "run")
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 2]


def test_each_ablation_changes_what_the_paper_says() -> None:
    cumulative = [number for number in range(10) if number not in (3, 6)]
    for before, after in [*pairwise(cumulative), (2, 3), (5, 6)]:
        changed = {line.partition(":")[0] for line in between(before, after)}
        assert changed == CHANGES[after], (before, after)


def between(before: int, after: int) -> list[str]:
    """What differs between two ablations."""
    then, now = (
        load_pretrain_recipe(f"ablations/m{number}").model_dump(mode="json")
        for number in (before, after)
    )
    return differences(then, now)


CHANGES = {
    1: {"model.hidden_act", "model.norm", "model.norm_eps", "model.position"},
    2: {"data.mix"},
    3: {"model.tokenizer", "model.vocab_size"},
    4: {"optim.name", "optim.betas", "optim.weight_decay", "optim.schedule"},
    5: {"objective.rate", "objective.replace"},
    6: {"data.packing"},
    7: {"model.hidden_size", "model.num_hidden_layers", "model.intermediate_size"},
    8: {"model.hidden_size", "model.num_hidden_layers", "model.intermediate_size"},
    9: {
        *("data.batch_tokens", "data.max_tokens", "data.micro_batch_tokens"),
        *("model.max_position_embeddings", "optim.lr", "optim.weight_decay"),
    },
}
