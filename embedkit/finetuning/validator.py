"""Validates a run on held-out pairs: which step is the best, and when no later one will be."""

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from embedkit import distributed
from embedkit.data.pairs.records import Records
from embedkit.data.pairs.validation_rows import rows_with_a_text_of
from embedkit.distributed.progress import show
from embedkit.errors import DataError, UserError
from embedkit.evaluation.encoding.in_context import encoder_of
from embedkit.finetuning.mixture import Mixture
from embedkit.finetuning.validation_loss import ValidationLoss
from embedkit.finetuning.validation_search import Search, search_of
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import Recipe, Validation
from embedkit.training import checkpoint
from embedkit.training.interfaces import Stop
from embedkit.training.metrics import append_lines, truncate_lines


@dataclass(frozen=True, slots=True)
class Best:
    """The step whose weights are exported."""

    step: int
    value: float
    metric: str
    last_step: int
    """Number of steps that the run has done."""
    measured: int
    """Number of steps that were measured."""

    def __str__(self) -> str:
        return (
            f"step {self.step} of {self.last_step}, {self.metric} {self.value:.4f}, best of "
            f"{self.measured}"
        )


class Validator:
    """Measures a model that is being trained into ``validation.jsonl``, a line for each measured
    step, and decides by these lines alone.

    A run resumed after ``s`` steps keeps the lines up to ``s``: its decisions are those of a run
    that was never stopped. All methods are called on every rank and have the same results there.
    """

    def __init__(
        self, recipe: Recipe, model: EmbeddingModel, mixture: Mixture, folder: Path
    ) -> None:
        assert recipe.validation is not None
        assert recipe.steps is not None
        self._settings, self._steps = recipe.validation, recipe.steps
        self._model, self._records = model, mixture.validation
        self._file, self._checkpoints = folder / "validation.jsonl", folder / "checkpoints"
        self._loss = ValidationLoss(recipe, model, self._records)
        # A line is small, and every rank has them all.
        self._lines: list[dict[str, Any]] = []
        self._searches = [_search(source, self._settings, recipe.seed) for source in self._records]
        if self._settings.metric == "ndcg_at_10" and not any(self._searches):
            raise DataError(
                "validation: no validation row has a query and an answer that is another text; "
                'raise validation.share, or set validation.metric = "loss"'
            )

    def before(self, start: int, stop: Stop) -> None:
        """Forget what was measured after ``start`` steps; measure the model before the first.

        Raises:
            UserError: the checkpoint of the best step so far is gone or damaged.
        """
        self._lines = distributed.on_main(partial(_lines_up_to, self._file, start))
        best = self.best_step()
        if best is not None and best < start:
            distributed.on_main(partial(self._checkpoint_of, best))
        if start == 0:
            self._measure_once(0, stop)

    def is_due(self, done: int) -> bool:
        """Return whether the model is measured after ``done`` steps."""
        return done % self._settings.every == 0 or done == self._steps

    def after_step(self, done: int, stop: Stop) -> bool:
        """Measure the model if that is due; return whether patience is at its end."""
        if self.is_due(done):
            self._measure_once(done, stop)
        best = self.best_step()
        if not self.is_out_of_patience or best is None:
            return False
        show(
            f"stopping early after step {done}: the last {self._settings.patience} measurements "
            f"of {self._settings.metric} were no better than at step {best}"
        )
        return True

    def choose(self, stop: Stop) -> Best | None:
        """Measure the last step; give the model the weights of the best one, and return that.

        ``None`` means that ``stop`` returned true before the last step was measured.
        """
        if not self.is_out_of_patience and not self._measure_once(self._steps, stop):
            return None
        lines, step = self._candidates, self.best_step()
        assert step is not None
        last, value = lines[-1]["step"], {line["step"]: self._value(line) for line in lines}[step]
        best = Best(step, value, self._settings.metric, last, len(lines))
        stored = distributed.on_main(partial(self._checkpoint_of, step))
        checkpoint.load_weights(stored, self._model)
        before = self._value(self._lines[0])
        if self._gain(value, before) <= 0:
            show(
                f"note: no measured step is better than the model before training, whose "
                f"{self._settings.metric} is {before:.4f}"
            )
        return best

    def best_step(self) -> int | None:
        """Return the first step with the best value, ``None`` before one after a step is known."""
        lines = self._candidates
        if not lines:
            return None
        values = [self._gain(self._value(line), 0.0) for line in lines]
        step: int = lines[values.index(max(values))]["step"]
        return step

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the last ``patience`` measurements brought no new best one."""
        patience, best = self._settings.patience, self.best_step()
        since = sum(line["step"] > (best or 0) for line in self._candidates)
        return patience is not None and since >= patience

    @property
    def _candidates(self) -> Sequence[Mapping[str, Any]]:
        """Lines of the steps that may be exported.

        A run that grew has a line of what was once its last step, which a longer one does not have.
        """
        return [line for line in self._lines if line["step"] > 0 and self.is_due(line["step"])]

    def _value(self, line: Mapping[str, Any]) -> float:
        value: float = line[self._settings.metric]
        return value

    def _gain(self, value: float, over: float) -> float:
        return over - value if self._settings.metric == "loss" else value - over

    def _measure_once(self, step: int, stop: Stop) -> bool:
        """Measure the model unless that was done; return False if ``stop`` came before the end."""
        if any(line["step"] == step for line in self._lines):
            return True
        began = time.monotonic()
        sources = self._measure(stop)
        if sources is None:
            return False
        means = _means(sources.values())
        if not all(map(math.isfinite, means.values())):
            raise UserError(
                f"validation after step {step}: {means}; start anew with a lower optim.lr or more "
                "optim.warmup_steps"
            )
        line = {"step": step, **means, "sources": sources}
        distributed.on_main(partial(append_lines, self._file, [line]))
        self._lines.append(line)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
        mark = " (best so far)" if self.best_step() == step else ""
        seconds = time.monotonic() - began
        show(f"validation after step {step}: {shown}{mark}, in {seconds:.1f} s")
        return True

    def _measure(self, stop: Stop) -> dict[str, dict[str, float]] | None:
        """Return the values of each source, or ``None`` if ``stop`` came before the last one."""
        sources: dict[str, dict[str, float]] = {}
        for number, search in enumerate(self._searches):
            if distributed.any_rank(stop(), self._model.device):
                return None
            values = {"loss": self._loss.of_source(number)}
            if search is not None:
                values["ndcg_at_10"] = encoder_of(self._model).run_on_main(search.ndcg_at_10)
            sources[self._records[number].name] = values
        return sources

    def _checkpoint_of(self, step: int) -> checkpoint.Checkpoint:
        folder = checkpoint.folder_of(self._checkpoints, step)
        try:
            return checkpoint.read(folder)
        except checkpoint.BrokenCheckpointError as error:
            raise UserError(
                f"{error}: it holds the weights of the best step of the run; restore it from a "
                "backup, or begin anew with --overwrite or another --output"
            ) from None


def described(mixture: Mixture, settings: Validation) -> str:
    """Return a line on the rows that a run is validated on, and the training rows like them."""
    rows = sum(map(len, mixture.validation))
    sources = len(mixture.validation)
    origin = settings.records or f"{100 * (settings.share or 0):g} % of the documents"
    total = sum(map(len, mixture.records))
    overlap = distributed.on_main(partial(rows_with_a_text_of, mixture.validation, mixture.records))
    return (
        f"validation: {rows:,} rows of {sources} source{'s' * (sources > 1)} ({origin}), every "
        f"{settings.every} steps by {settings.metric}; {overlap:,} of {total:,} training rows have "
        "one of their texts"
    )


def _search(records: Records, settings: Validation, seed: int) -> Search | None:
    # Scores say how well two texts match, and not that one answers the other.
    return None if records.has_scores else search_of(records, settings, seed)


def _means(sources: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each measure over the sources that have it."""
    measures = dict.fromkeys(name for values in sources for name in values)
    return {name: mean(values[name] for values in sources if name in values) for name in measures}


def _lines_up_to(file: Path, step: int) -> list[dict[str, Any]]:
    """Remove the lines of steps after ``step`` from a file, if there is one; return the others."""
    if not file.is_file():
        return []
    truncate_lines(file, step)
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
