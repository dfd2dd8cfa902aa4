from pathlib import Path

import pytest
from mteb.models import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer

from embedkit import api
from embedkit.config import read_toml
from embedkit.errors import UserError
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks
from embedkit.recipe import load_recipe
from embedkit.tokens.prompts import as_prefix, benchmark_prompts, instruction_prompts


def test_an_instruction_loses_its_full_stop_and_gains_a_colon() -> None:
    assert as_prefix("Retrieve similar text.") == "Retrieve similar text: "
    assert as_prefix("Retrieve similar text") == "Retrieve similar text: "
    assert as_prefix("") == ""


def test_the_prompt_of_every_task_of_the_benchmark_is_the_paper_s() -> None:
    names = [leaf.metadata.name for task in select_tasks("MTEB(eng, v1)") for leaf in leaves(task)]
    expected = read_toml(Path(__file__).with_name("paper_prompts.toml"))
    assert len(names) == 67
    assert sorted(names) == sorted(expected)
    assert instruction_prompts(names) == expected
    assert benchmark_prompts() == expected


def test_mteb_gives_an_export_the_paper_s_prompts_by_itself(
    small_recipe: Path, tmp_path: Path
) -> None:
    settings = ["embedder.benchmark_prompts=true", "steps=1", "optim.warmup_steps=0"]
    api.finetune(load_recipe(str(small_recipe), settings), tmp_path / "run")
    exported = tmp_path / "run" / "model"
    theirs = SentenceTransformerEncoderWrapper(SentenceTransformer(str(exported), device="cpu"))
    assert theirs.model_prompts is not None
    expected = read_toml(Path(__file__).with_name("paper_prompts.toml"))
    for part in (part for task in select_tasks("MTEB(eng, v1)") for part in leaves(task)):
        for side in (None, PromptType.query, PromptType.document):
            name = theirs.get_prompt_name(part.metadata, side)
            assert name is not None
            assert theirs.model_prompts[name] == expected[part.metadata.name]
    # What training said is there as well; the card names the benchmark instead of its tasks.
    assert theirs.model_prompts["query"] == "query: "
    card = (exported / "README.md").read_text()
    assert "Prompts: query `query: `, one for each task of MTEB(eng, v1)" in card


def test_a_task_that_is_not_listed_has_none() -> None:
    assert instruction_prompts(["CmedqaRetrieval"]) == {}


def test_the_name_itself_goes_before_patterns_and_a_longer_pattern_before_a_shorter(
    tmp_path: Path,
) -> None:
    registry = tmp_path / "instructions.toml"
    registry.write_text('"STS*" = "any"\n"STS1*" = "teens"\n"STS1?*" = "tens"\nSTS12 = "twelve"\n')
    expected = {"STS22": "any: ", "STS1": "teens: ", "STS13": "tens: ", "STS12": "twelve: "}
    assert instruction_prompts(expected, registry) == expected


def test_a_table_sets_queries_and_documents_apart(tmp_path: Path) -> None:
    registry = tmp_path / "instructions.toml"
    registry.write_text('ArguAna = { query = "Refute the claim.", document = "" }\n')
    expected = {"ArguAna-query": "Refute the claim: ", "ArguAna-document": ""}
    assert instruction_prompts(["ArguAna"], registry) == expected


@pytest.mark.parametrize("entry", ["7", '{ query = "a", passage = "b" }', '{ query = "a" }'])
def test_what_is_no_instruction_is_refused(tmp_path: Path, entry: str) -> None:
    registry = tmp_path / "instructions.toml"
    registry.write_text(f"ArguAna = {entry}\n")
    with pytest.raises(UserError, match=r"ArguAna: write one string, or a table of query and doc"):
        instruction_prompts(["ArguAna"], registry)
