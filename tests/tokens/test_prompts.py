from pathlib import Path

import pytest
from mteb.models import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer

from embedkit import api
from embedkit.config import read_toml
from embedkit.evaluation.mteb.instructions import Instructions
from embedkit.evaluation.mteb.task_prompts import resolve_prompts
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks
from embedkit.models import hub
from embedkit.recipe import load_recipe
from embedkit.tokens.prompts import as_prefix, benchmark_prompts


def test_an_instruction_loses_its_full_stop_and_gains_a_colon() -> None:
    assert as_prefix("Retrieve similar text.") == "Retrieve similar text: "
    assert as_prefix("Retrieve similar text") == "Retrieve similar text: "
    assert as_prefix("") == ""


@pytest.mark.slow
def test_the_prompt_of_every_task_of_the_benchmark_is_the_paper_s() -> None:
    names = [leaf.metadata.name for task in select_tasks("MTEB(eng, v1)") for leaf in leaves(task)]
    expected = read_toml(Path(__file__).with_name("paper_prompts.toml"))
    assert len(names) == 67
    assert sorted(names) == sorted(expected)
    assert benchmark_prompts() == expected


def test_mteb_gives_an_export_the_paper_s_prompts_by_itself(
    small_recipe: Path, tmp_path: Path
) -> None:
    settings = ["embedder.benchmark_prompts=true", "steps=1", "optim.warmup_steps=0"]
    api.finetune(load_recipe(str(small_recipe), settings), tmp_path / "run")
    exported = tmp_path / "run" / "model"
    theirs = SentenceTransformerEncoderWrapper(SentenceTransformer(str(exported), device="cpu"))
    model = hub.load(str(exported))
    assert theirs.model_prompts is not None
    expected = read_toml(Path(__file__).with_name("paper_prompts.toml"))
    for part in (part for task in select_tasks("MTEB(eng, v1)") for part in leaves(task)):
        for side in (None, PromptType.query, PromptType.document):
            name = theirs.get_prompt_name(part.metadata, side)
            assert name is not None
            assert theirs.model_prompts[name] == expected[part.metadata.name]
        # So that nobody has to ask for them.
        ours, origin = resolve_prompts(part, model, Instructions())
        assert (set(ours.values()), origin) == ({expected[part.metadata.name]}, "the model's own")
    # What training said is there as well; the card names the benchmark instead of its tasks.
    assert theirs.model_prompts["query"] == "query: "
    card = (exported / "README.md").read_text()
    assert "Prompts: query `query: `, one for each task of MTEB(eng, v1)" in card
