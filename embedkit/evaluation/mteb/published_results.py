"""Results in the layout of mteb's ``ResultCache``, for mteb to load, tabulate and submit."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock
from mteb.cache import ResultCache
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.results import TaskResult
from pydantic import ValidationError

from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import TextEncoder
from embedkit.storage.hashing import sha256_of_json


class PublishedResults:
    """Results of one model in ``<folder>/results/<organization>__<model>/<revision>/``.

    All tasks and aggregates of a model are under one ``revision``. It is a hash of what scores
    depend on besides the data: weights, precision, prompts, and how contexts are drawn. A model
    without an organization gets ``embedkit``, because mteb demands one.

    ``model_meta.json`` lacks what embedkit does not know of a model, such as its licence and
    languages. What a user adds there is kept. Several processes may write to one folder.

    Raises:
        UserError: the ``model_meta.json`` that is there has a value that mteb does not accept.
    """

    def __init__(
        self, folder: Path, encoder: TextEncoder, instructions: Mapping[str, str], identity: str
    ) -> None:
        chosen = [identity, dict(encoder.prompts), encoder.default_prompt_name, dict(instructions)]
        self.revision = sha256_of_json(chosen)
        self._cache = ResultCache(folder)
        facts, name = encoder.facts, encoder.name
        known = {
            "name": name if name.count("/") == 1 else f"embedkit/{name.replace('/', '_')}",
            "revision": self.revision,
            "n_parameters": facts.parameters,
            "memory_usage_mb": round(facts.memory / 2**20),
            "max_tokens": facts.max_tokens,
            "embed_dim": facts.width,
            "similarity_fn_name": ScoringFunction(facts.similarity),
            "framework": ["Sentence Transformers", "PyTorch"],
            "use_instructions": any(encoder.prompts.values()) or bool(instructions),
        }
        empty = ModelMeta.create_empty(known)
        path = self._cache.get_task_result_path("any", empty).with_name("model_meta.json")
        with self._locked():
            self._meta = _stored(path, known) or empty.model_copy(
                update={"release_date": datetime.now(UTC).date().isoformat()}
            )

    def keep(self, result: TaskResult, settings: Mapping[str, Any]) -> None:
        """Write the result of a task, and in ``run_settings.jsonl`` what it was measured with."""
        with self._locked():
            self._cache.save_to_cache(result, self._meta, encode_kwargs=settings)

    def _locked(self) -> FileLock:
        """Return a lock of the folder, whose files mteb reads and writes again for each task."""
        folder = self._cache.cache_path
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder.with_name(f".{folder.name}.lock"))


def _stored(path: Path, known: Mapping[str, Any]) -> ModelMeta | None:
    """Return the meta of an earlier call, if there is one, with what is ``known`` now."""
    with suppress(OSError, json.JSONDecodeError):  # There is none, or it was cut short.
        written = json.loads(path.read_bytes())
        if not isinstance(written, dict):
            raise UserError(f"{path}: is no JSON object; correct it, or delete the file")
        # mteb writes this field and warns when it reads it.
        written.pop("is_cross_encoder", None)
        try:
            # mteb does not read every similarity that it writes, but takes its own type.
            return ModelMeta.model_validate({**written, **known})
        except ValidationError as error:
            mistake = error.errors()[0]
            place = mistake["loc"]
            what = f"{place[0]} = {mistake['input']!r}" if place else mistake["msg"]
            raise UserError(
                f"{path}: mteb does not accept {what}; correct it, or delete the file"
            ) from None
    return None
