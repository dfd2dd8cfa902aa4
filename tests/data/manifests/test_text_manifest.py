from pathlib import Path

import pytest
from support.manifests import shipped_manifests, shipped_text_manifests

from embedkit.data.manifests.manifest import (
    Manifest,
    TextManifest,
    load_any_manifest,
    load_manifest,
    load_text_manifest,
)
from embedkit.errors import UserError

FILES = 'source = { kind = "files", files = [{ path = "articles.jsonl" }] }\n'
TEXT = FILES + 'columns = { text = "body" }\n'


def read(folder: Path, text: str) -> TextManifest:
    path = folder / "mine.toml"
    path.write_text(text)
    return load_text_manifest(str(path))


@pytest.mark.parametrize("name", shipped_text_manifests())
def test_a_shipped_manifest_states_its_licence_and_a_package_its_documents(name: str) -> None:
    manifest = load_text_manifest(name)
    assert manifest.license
    assert manifest.source.kind != "package" or manifest.rows


def test_text_and_pairs_are_told_apart_by_the_column() -> None:
    assert {"refinedweb", "wikipedia", "bookcorpus", "text_hpo"} <= set(shipped_text_manifests())
    assert "hpo_synonym" in shipped_manifests()
    assert not set(shipped_text_manifests()) & set(shipped_manifests())
    assert isinstance(load_any_manifest("hpo_synonym"), Manifest)
    assert isinstance(load_any_manifest("text_hpo"), TextManifest)


def test_pairs_are_no_text() -> None:
    with pytest.raises(UserError, match=r"^hpo_synonym: describes pairs; .*columns\.text$"):
        load_text_manifest("hpo_synonym")


def test_text_is_no_pairs() -> None:
    with pytest.raises(UserError, match=r"text_hpo: describes text for pretraining"):
        load_manifest("text_hpo")


def test_one_column_or_several_make_the_text(tmp_path: Path) -> None:
    assert read(tmp_path, TEXT).columns.text == ("body",)
    two = FILES + 'columns = { text = ["title", "parts[].body"] }'
    assert read(tmp_path, two).columns.text == ("title", "parts[].body")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + 'prompts = { query = "q" }', r"mine\.toml: prompts: there is no such key"),
        (TEXT + 'name = "other"', r"mine\.toml: name: take it out"),
        (TEXT + "held_out = { share = 1.0 }", r"held_out\.share: Input should be less than 1"),
        (FILES + "columns = { text = [] }", r"columns\.text: Value should have at least 1 item"),
        (FILES + 'columns = { text = "a[x]" }', r"columns\.text\.0: 'a\[x\]' is no column path"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
