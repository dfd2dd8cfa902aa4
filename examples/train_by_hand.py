"""Fine-tune with the parts of embedkit put together by hand, without a run folder.

``python examples/train_by_hand.py RECIPE OUTPUT`` trains on one process what ``embedkit finetune
--recipe RECIPE`` trains, to the same bits, and writes the model to OUTPUT. Evaluation, checkpoints
and the model card are left to the command, and so are recipes with epochs, adapters, a batch table
or two stages, which are refused.
"""

import sys
from pathlib import Path

import torch

import embedkit
from embedkit import distributed, rng
from embedkit.data.batch_sampler import BatchSampler, Source, alpha_weights
from embedkit.data.loading import stream
from embedkit.data.pairs.contrastive_batches import Batches
from embedkit.data.pairs.records import open_records
from embedkit.finetuning.mixture import batch_size_of
from embedkit.finetuning.model import (
    choose_trained_weights,
    scale_to_unit_norm,
    set_prompts,
)
from embedkit.models import hub, precision
from embedkit.models.export import write_model
from embedkit.training.optim import build_optimizer, lr_at, set_lr


def main(recipe_name: str, output: Path) -> None:
    device = distributed.local_device()
    # "auto" becomes bf16 where the device multiplies it natively, and fp32 elsewhere.
    recipe, _ = precision.resolve(embedkit.load_recipe(recipe_name), device)
    if recipe.steps is None or recipe.lora or recipe.context or recipe.data.batch_table:
        sys.exit(
            f"{recipe_name}: has epochs, [lora], [context] or a batch_table, which this example "
            "leaves out; use embedkit finetune"
        )

    # Data: which rows each step reads follows from the sizes of the sources, the seed and the step.
    records = [open_records(mix.manifest) for mix in recipe.data.mix]
    sources = [
        Source(rows.name, len(rows), batch_size_of(rows.batch_size, recipe)) for rows in records
    ]
    given = [mix.weight for mix in recipe.data.mix if mix.weight is not None]
    sampler = BatchSampler(
        sources,
        given or alpha_weights(sources, recipe.data.alpha),
        steps=recipe.steps,
        batches_per_step=recipe.optim.gradient_accumulation_steps,
        seed=recipe.seed,
    )

    # Model, loss and optimizer: each is a value of its own, and none knows the others.
    autocast = precision.autocast_dtype(recipe.precision, device)
    model = hub.load(recipe.model, settings=recipe.embedder, autocast=autocast, device=device)
    # Losses compare unit vectors, which a bare encoder does not give.
    scale_to_unit_norm(model)
    # The export has the prompts with which the sources are read here.
    set_prompts(recipe, records, model)
    # With train_dense = false, Dense modules behind the pooling keep their weights.
    choose_trained_weights(recipe, model)
    objective = recipe.objective.build()
    optimizer = build_optimizer(model, recipe.optim)
    batches = Batches(
        sampler,
        records,
        model.tokenizer,
        recipe.data,
        seed=recipe.seed,
        known_answers=recipe.objective.needs.known_answers,
    )

    model.train()
    ahead = stream(batches, range(len(batches)), recipe.data.workers)
    for step in range(recipe.steps):
        optimizer.zero_grad()
        for micro in range(recipe.optim.gradient_accumulation_steps):
            metrics = objective.backward(
                model,
                next(ahead).to(device),
                # The key names the randomness of this batch: dropout, and nothing stored.
                key=rng.fold_in(recipe.seed, "step", step, micro, 0),
                scale=1 / recipe.optim.gradient_accumulation_steps,
            )
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optim.max_grad_norm or torch.inf)
        set_lr(optimizer, lr_at(step, recipe.steps, recipe.optim))
        optimizer.step()
        print(f"step {step + 1}: loss {metrics['loss']:.3f}, accuracy {metrics['accuracy']:.3f}")

    write_model(model, output)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/train_by_hand.py RECIPE OUTPUT")
    main(sys.argv[1], Path(sys.argv[2]))
