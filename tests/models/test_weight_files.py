"""Weights come from safetensors of the model's own folder, whatever an index says."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.tiny_bert import write_tiny_model
from support.tiny_neobert import tiny_masked_lm, write_with_tokenizer

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.neobert import NeoBERTModel
from embedkit.models.neobert.state_dict import load_pretrained

INDEX = "model.safetensors.index.json"


def bert(folder: Path) -> Path:
    folder.mkdir()
    return write_tiny_model(folder)


def neobert(folder: Path) -> Path:
    return write_with_tokenizer(tiny_masked_lm(), folder)


LOADERS: dict[str, tuple[Callable[[Path], Path], Callable[[str], object]]] = {
    "bert": (bert, hub.load),
    "neobert": (neobert, hub.load),
    "neobert-keys": (neobert, partial(load_pretrained, NeoBERTModel)),
    "neobert-masked-lm": (neobert, hub.load_masked_lm),
}


def split(folder: Path, name: str) -> Path:
    """Move the weights of ``folder`` into the file ``name``, which an index names."""
    weights = folder / "model.safetensors"
    index = {"metadata": {"total_size": 0}, "weight_map": dict.fromkeys(load_file(weights), name)}
    (folder / INDEX).write_text(json.dumps(index))
    moved = folder / name
    moved.parent.mkdir(exist_ok=True)
    return weights.rename(moved)


def as_pickle(path: Path) -> None:
    # Copied, since the tensors lie in the file that is written over.
    torch.save({name: weight.clone() for name, weight in load_file(path).items()}, path)


def leave(_path: Path) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("pytorch_model.bin", as_pickle),
        ("../outside.safetensors", leave),
        ("below/model.safetensors", leave),
        ("{root}/outside.safetensors", leave),
        ("..\\outside.safetensors", leave),
        ("model.safetensors.bin", as_pickle),
    ],
    ids=["pickle", "parent", "below", "absolute", "backslash", "suffix"],
)
def test_an_index_names_nothing_but_safetensors_beside_it(
    name: str, change: Callable[[Path], None], loader: str, tmp_path: Path
) -> None:
    write, load = LOADERS[loader]
    folder = write(tmp_path / "model")
    name = name.format(root=tmp_path)
    change(split(folder, name))
    with pytest.raises(UserError) as refused:
        load(str(folder))
    assert f"{folder / INDEX}: names {name} for weights, and only *.safetensors" in str(
        refused.value
    )
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("loader", LOADERS)
def test_shards_beside_their_index_are_read(loader: str, tmp_path: Path) -> None:
    write, load = LOADERS[loader]
    folder = write(tmp_path / "model")
    split(folder, "model-00001-of-00001.safetensors")
    load(str(folder))


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 1}', '{"weight_map": {"a": []}}'],
)
def test_a_damaged_index_is_named(text: str, loader: str, tmp_path: Path) -> None:
    write, load = LOADERS[loader]
    folder = write(tmp_path / "model")
    split(folder, "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(text)
    with pytest.raises(UserError, match=r"index\.json: is not an index of weights; copy it anew"):
        load(str(folder))


def cached(root: Path, name: str) -> Path:
    """Put a tiny BERT into a cache of the hub, whose files are links; return its snapshot."""
    repository = root / "hub" / "models--org--tiny"
    snapshot, blobs = repository / "snapshots" / ("a" * 40), repository / "blobs"
    snapshot.parent.mkdir(parents=True)
    bert(snapshot)
    split(snapshot, name)
    blobs.mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        blob = path.rename(blobs / str(number))
        path.symlink_to(Path("../../blobs") / blob.name)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    return snapshot


def load_from_cache(root: Path) -> str:
    code = (
        "from embedkit.errors import UserError\n"
        "from embedkit.models import hub\n"
        "try:\n"
        "    print(hub.load('org/tiny').encode(['a text']).shape)\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    environment = os.environ | {"HF_HOME": str(root), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_links_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "model-00001-of-00001.safetensors")
    expected = hub.load(str(bert(tmp_path / "plain"))).encode(["a text"])
    np.testing.assert_array_equal(hub.load(str(snapshot)).encode(["a text"]), expected)


@pytest.mark.slow
def test_a_hub_id_is_held_to_its_own_files(tmp_path: Path) -> None:
    cached(tmp_path / "good", "model-00001-of-00001.safetensors")
    assert load_from_cache(tmp_path / "good") == "(1, 32)\n"
    snapshot = cached(tmp_path / "bad", "pytorch_model-00001-of-00001.bin")
    as_pickle(snapshot / "pytorch_model-00001-of-00001.bin")
    assert "names pytorch_model-00001-of-00001.bin for weights" in load_from_cache(tmp_path / "bad")


@pytest.mark.parametrize("name", ["adapter_model.bin", "../outside.safetensors", "mine.index.json"])
def test_a_config_names_no_other_files_either(name: str, tmp_path: Path) -> None:
    folder = bert(tmp_path / "model")
    as_pickle((folder / "model.safetensors").rename(folder / name))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))
    with pytest.raises(UserError, match=f"config.json: names {name} for weights"):
        hub.load(str(folder))


def test_an_index_that_the_config_names_is_looked_into(tmp_path: Path) -> None:
    folder = bert(tmp_path / "model")
    as_pickle(split(folder, "pytorch_model.bin"))
    (folder / INDEX).rename(folder / "mine.safetensors.index.json")
    config = json.loads((folder / "config.json").read_text())
    config["transformers_weights"] = "mine.safetensors.index.json"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=r"mine\.safetensors\.index\.json: names pytorch_model\.bin"
    ):
        hub.load(str(folder))


@pytest.mark.parametrize("loader", ["bert", "neobert"])
def test_an_adapter_is_not_left_out_unsaid(loader: str, tmp_path: Path) -> None:
    write, load = LOADERS[loader]
    folder = write(tmp_path / "model")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"holds an adapter .*; merge it into .* with peft's merge_and"
    ):
        load(str(folder))
