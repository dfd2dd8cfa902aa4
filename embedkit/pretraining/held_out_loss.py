"""Measures, during pretraining, the loss on documents that are held out from it."""

import json
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from embedkit import distributed
from embedkit.data.text.masked_batches import MaskedBatch
from embedkit.objectives.masked_lm import micro_batches
from embedkit.pretraining.language_model import LanguageModel
from embedkit.pretraining.mixture import TextMixture
from embedkit.recipe import PretrainRecipe
from embedkit.training.metrics import truncate_lines


class HeldOutLosses:
    """Measures every source's held-out rows, masked the same each time, into ``held_out.jsonl``.

    A line holds step, source, loss and accuracy. Every rank takes its share of the rows.
    """

    def __init__(
        self,
        recipe: PretrainRecipe,
        mixture: TextMixture,
        model: LanguageModel,
        path: Path,
        console: Console,
    ) -> None:
        assert recipe.steps is not None
        self._every, self._steps = recipe.held_out.every, recipe.steps
        self._micro_batch_tokens = recipe.data.micro_batch_tokens
        self._model = model
        self._batches = mixture.held_out_batches()
        self._sources = {source.name: source for source in mixture.sources}
        self._path, self._console = path, console

    def before(self, start: int) -> None:
        """Remove what was measured after ``start`` steps; measure the model before the first."""
        distributed.on_main(partial(truncate_lines, self._path, start - 1))
        if start == 0 and self._every:
            self._measure(0)

    def after_step(self, done: int) -> None:
        """Measure the model after ``done`` steps, if a measurement is due."""
        if self._every and done % self._every == 0:
            self._measure(done)

    def after(self) -> None:
        """Measure the trained model, and print its loss beside that of guessing by frequency."""
        if not self._batches:
            return
        losses = self._measure(self._steps)
        table = Table(title="held-out loss, nats a masked token")
        for column in ("source", "loss", "by frequency alone", "accuracy"):
            table.add_column(column, justify="left" if column == "source" else "right")
        vocabulary = self._model.network.config.vocab_size
        for batch in self._batches:
            loss, accuracy = losses[batch.source]
            frequencies = self._sources[batch.source].word_frequencies(vocabulary)
            # With GPUs, ranks can only exchange tensors that are on them.
            by_frequency = unigram_loss(
                frequencies.to(self._device), batch.targets.to(self._device)
            )
            table.add_row(batch.source, f"{loss:.3f}", f"{by_frequency:.3f}", f"{accuracy:.1%}")
        self._console.print(table)

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _measure(self, step: int) -> dict[str, tuple[float, float]]:
        losses = {batch.source: self._loss(batch) for batch in self._batches}
        distributed.on_main(partial(self._write, step, losses))
        return losses

    @torch.no_grad()
    def _loss(self, batch: MaskedBatch) -> tuple[float, float]:
        """Return the mean loss and the accuracy over the masked tokens of all ranks."""
        on_device = batch.to(self._device)
        sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        for rows in micro_batches(on_device, self._micro_batch_tokens):
            micro = on_device.select(rows)
            loss, right = self._model(micro.tokens, micro.positions, micro.targets)
            sums += torch.tensor([loss.item(), right.item(), len(micro.positions)]).to(sums)
        total, right, masked = distributed.sum_over_ranks(sums).tolist()
        return total / max(1, masked), right / max(1, masked)

    def _write(self, step: int, losses: dict[str, tuple[float, float]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            for source, (loss, accuracy) in losses.items():
                line = {"step": step, "source": source, "loss": loss, "accuracy": accuracy}
                file.write(json.dumps(line) + "\n")


def unigram_loss(frequencies: Tensor, targets: Tensor) -> float:
    """Return the mean loss, over all ranks, of guessing words by their frequencies alone."""
    losses = -frequencies.log()[targets]
    total = torch.stack([losses.sum(), losses.new_tensor(len(targets))]).double()
    summed, count = distributed.sum_over_ranks(total).tolist()
    return summed / max(1.0, count)
