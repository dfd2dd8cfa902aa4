"""A script that scores tasks with mteb and sentence-transformers alone, for ``verification``.

It runs in a process of its own, ``python -I stock_scores.py FOLDER``, and imports nothing of
embedkit. FOLDER holds ``request.pickle``, and gets ``scores.json``: the score of each task, or the
reason why it has none.
"""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import mteb
import torch
from mteb.models import SentenceTransformerEncoderWrapper
from sentence_transformers import SentenceTransformer


def main(folder: Path) -> None:
    # The process that started this one has written the file.
    request = pickle.loads((folder / "request.pickle").read_bytes())
    model = SentenceTransformer(
        request["model"],
        device=request["device"],
        trust_remote_code=request["trust_remote_code"],
        truncate_dim=request["truncate_dim"],
        model_kwargs={"dtype": torch.float32},
    )
    if request["max_tokens"] is not None:
        model.max_seq_length = request["max_tokens"]
    stored = dict(model.prompts)
    scores: dict[str, float | str] = {}
    for each in request["tasks"]:
        # mteb sets a model's prompts to those that it is given.
        model.prompts = dict(stored)
        try:
            scores[each["name"]] = _score(model, each)
        except Exception as error:  # The other tasks can be scored all the same.
            scores[each["name"]] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    assert "embedkit" not in sys.modules
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")


def _score(model: SentenceTransformer, each: dict[str, Any]) -> float:
    task = type(each["base"].__name__, (each["base"],), each["of_class"])()
    vars(task).update(each["of_object"])
    options: Any = {"batch_size": 32, "show_progress_bar": False}
    if each["context"] is not None:
        module: Any = model[0]
        options["dataset_embeddings"] = module.build_context(*each["context"])
    results = mteb.evaluate(
        SentenceTransformerEncoderWrapper(model, model_prompts=each["prompts"]),
        task,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs=options,
    )
    if not results.task_results:
        # mteb reports a private data set out of reach, and raises nothing.
        raise RuntimeError("; ".join(error.exception for error in results.exceptions or ()))
    return float(results.task_results[0].get_score(splits=list(task.eval_splits)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
