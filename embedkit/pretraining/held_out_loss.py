"""Measures, during pretraining, the loss on documents that are held out from it."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.table import Column, Table
from torch import Tensor

from embedkit import distributed
from embedkit.data.text.masked_batches import MaskedBatch
from embedkit.distributed.progress import show
from embedkit.objectives.masked_lm import micro_batches
from embedkit.pretraining.language_model import LanguageModel
from embedkit.pretraining.mixture import TextMixture
from embedkit.recipe import PretrainRecipe
from embedkit.training.interfaces import Stop
from embedkit.training.metrics import append_lines, truncate_lines


@dataclass(frozen=True, slots=True)
class HeldOutLosses:
    """Measures every source's held-out rows, masked the same each time, into the file ``path``.

    A line holds step, source, loss and accuracy. Every rank takes its share of the rows.
    """

    recipe: PretrainRecipe
    mixture: TextMixture
    model: LanguageModel
    path: Path

    def before(self, start: int, stop: Stop) -> None:
        """Remove what was measured after ``start`` steps; measure the model before the first."""
        distributed.on_main(partial(truncate_lines, self.path, start - 1))
        if start == 0:
            self.after_step(0, stop)

    def takes_long(self, _done: int) -> bool:
        """Return that a measurement is quicker than a checkpoint: it needs no gradients."""
        return False

    def after_step(self, done: int, _stop: Stop) -> bool:
        """Measure the model after ``done`` steps, if a measurement is due; training goes on."""
        every = self.recipe.held_out.every
        if every and done % every == 0:
            self._measure(done)
        return False

    def best_step(self) -> None:
        """Return no step: pretraining exports the last one."""

    def after(self) -> None:
        """Measure the trained model, and print its loss beside that of guessing by frequency."""
        if not self.mixture.held_out:
            return
        assert self.recipe.steps is not None
        losses = self._measure(self.recipe.steps)
        heads = ("loss", "by frequency alone", "accuracy")
        columns = (Column(head, justify="right") for head in heads)
        table = Table("source", *columns, title="held-out loss, nats a masked token")
        vocabulary = self.model.network.config.vocab_size
        sources = {source.name: source for source in self.mixture.sources}
        for batch in self.mixture.held_out:
            loss, accuracy = losses[batch.source]
            frequencies = sources[batch.source].word_frequencies(vocabulary)
            # With GPUs, ranks can only exchange tensors that are on them.
            by_frequency = unigram_loss(
                frequencies.to(self._device), batch.targets.to(self._device)
            )
            table.add_row(batch.source, f"{loss:.3f}", f"{by_frequency:.3f}", f"{accuracy:.1%}")
        show(table)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _measure(self, step: int) -> dict[str, tuple[float, float]]:
        losses = {batch.source: self._loss(batch) for batch in self.mixture.held_out}
        lines = [
            {"step": step, "source": source, "loss": loss, "accuracy": accuracy}
            for source, (loss, accuracy) in losses.items()
        ]
        distributed.on_main(partial(append_lines, self.path, lines))
        return losses

    @torch.no_grad()
    def _loss(self, batch: MaskedBatch) -> tuple[float, float]:
        """Return the mean loss and the accuracy over the masked tokens of all ranks."""
        on_device = batch.to(self._device)
        sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        for rows in micro_batches(on_device, self.recipe.data.micro_batch_tokens):
            micro = on_device.select(rows)
            loss, right = self.model(micro.tokens, micro.positions, micro.targets)
            sums += torch.tensor([loss.item(), right.item(), len(micro.positions)]).to(sums)
        total, right, masked = distributed.sum_over_ranks(sums).tolist()
        return total / max(1, masked), right / max(1, masked)


def unigram_loss(frequencies: Tensor, targets: Tensor) -> float:
    """Return the mean loss, over all ranks, of guessing words by their frequencies alone."""
    losses = -frequencies.log()[targets]
    total = torch.stack([losses.sum(), losses.new_tensor(len(targets))]).double()
    summed, count = distributed.sum_over_ranks(total).tolist()
    return summed / max(1.0, count)
