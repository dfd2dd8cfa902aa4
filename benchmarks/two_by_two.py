"""Contextual batches and the contextual model, each with and without: the CDE paper's 2 x 2.

All four are trained over several seeds and evaluated on the same tasks. A step of two stages reads
the context in front of every text, and costs that much more; so one stage is trained twice, for as
many steps and for as many positions read. Runs that are there already are not repeated.

Usage, with the data under $EMBEDKIT_DATA and a small NeoBERT of ``embedkit pretrain --recipe
starter-mlm``::

    python benchmarks/two_by_two.py [--model runs/starter-mlm/model] [--seeds 1 2 3] [--jobs 2]

and for the batches alone, from an encoder that has been trained already::

    python benchmarks/two_by_two.py --conditions plain "contextual batches" --model starter
        --set optim.lr=5e-5 --output runs/two_by_two_starter --batches runs/two_by_two/batches
        --results benchmarks/results/two_by_two_starter.md

Each run adds to ``--results``, and writes a JSON file with every score beside it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, stdev

import harness
import torch

from embedkit.evaluation.comparing.statistics import of_groups
from embedkit.evaluation.summary import Summary
from embedkit.models import hub
from embedkit.recipe import Recipe, load_recipe

RECIPE = Path(__file__).with_suffix(".toml")
TITLE = "Contextual batches and the contextual model"
ONE_STAGE = ("objective.kind=contrastive", "context=")
SHUFFLED = ("data.batches=shuffled",)
CONDITIONS = {
    "plain": (*ONE_STAGE, *SHUFFLED),
    "contextual batches": ONE_STAGE,
    "contextual model": SHUFFLED,
    "both": (),
}
COLUMNS = ("", "steps", "million positions", "s/step", "loss", "accuracy", "average", "to plain")
LAST = 30
"""Steps over which loss and accuracy are averaged."""


@dataclass(frozen=True)
class Run:
    """Measurements of one run."""

    condition: str
    seed: int
    steps: int
    positions: int
    """Positions that went through an encoder: a text of the second stage counts its context too."""
    step_seconds: float
    """Median step on one thread."""
    loss: float
    accuracy: float
    scores: dict[str, float]
    """The score of each task, times 100."""

    @property
    def average(self) -> float:
        return fmean(self.scores.values())


def train(condition: str, seed: int, steps: int, options: argparse.Namespace) -> Run:
    """Train and evaluate in a process of its own, unless that has been done."""
    overrides = (
        *CONDITIONS[condition],
        f"seed={seed}",
        f"steps={steps}",
        f"optim.warmup_steps={steps // 10}",
        f"model={options.output / 'backbone'}",
        f"data.batch_table={options.batches}",
        *options.set,
    )
    output = options.output / f"{condition.replace(' ', '-')}-{steps}-{seed}"
    summary = output / "eval" / "after" / "summary.json"
    if not summary.is_file():
        embedkit(
            "finetune", output, "--overwrite", *(f"--set={override}" for override in overrides)
        )
    recipe = load_recipe(str(RECIPE), list(overrides))
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return Run(
        condition,
        seed,
        steps,
        positions=sum(positions_of(line["tokens"], recipe) for line in lines),
        step_seconds=median(line["seconds"] for line in lines),
        loss=fmean(line["loss"] for line in lines[-LAST:]),
        accuracy=100 * fmean(line["accuracy"] for line in lines[-LAST:]),
        scores={name: 100 * task.score for name, task in Summary.read(summary).scores.items()},
    )


def positions_of(tokens: float, recipe: Recipe) -> int:
    """Return the positions of a step that read as many tokens."""
    slots = recipe.context.num_context if recipe.context else 0
    return int(tokens) + 2 * recipe.data.batch_size * slots


def embedkit(command: str, output: Path, *arguments: str) -> None:
    """Run a command on one thread, with a log beside its folder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.with_name(f"{output.name}.log").open("w") as log:
        subprocess.run(
            [
                Path(sys.executable).with_name("embedkit"),
                command,
                f"--recipe={RECIPE}",
                f"--output={output}",
                *arguments,
            ],
            check=True,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def copy_backbone(options: argparse.Namespace) -> None:
    """Copy the model to start from, to read as many tokens in the tasks as in training."""
    copy = options.output / "backbone"
    shutil.copytree(hub.resolve(options.model), copy, dirs_exist_ok=True)
    limit = load_recipe(str(RECIPE)).data.max_document_tokens
    (copy / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))


def trained(conditions: Sequence[str], steps: int, options: argparse.Namespace) -> list[Run]:
    """Train some conditions with every seed, ``--jobs`` at a time."""
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(train, condition, seed, steps, options)
            for condition in conditions
            for seed in options.seeds
        ]
        return [run.result() for run in runs]


def as_many_positions(runs: Sequence[Run], options: argparse.Namespace) -> list[Run]:
    """Train one stage for as many positions as two stages read; with the ``runs`` of two stages."""
    by_name = {name: [run for run in runs if run.condition == name] for name in CONDITIONS}
    ratio = sum(run.positions for run in by_name["both"]) / sum(
        run.positions for run in by_name["plain"]
    )
    longer = trained(list(CONDITIONS)[:2], round(options.steps * ratio), options)
    return longer + by_name["contextual model"] + by_name["both"]


def rows_of(runs: Sequence[Run]) -> list[list[str]]:
    """Return a row for each condition, with its difference to the plain one over the tasks."""
    plain = [run for run in runs if run.condition == "plain"]
    rows = []
    for name in dict.fromkeys(run.condition for run in runs):
        seeds = [run for run in runs if run.condition == name]
        old, new = ([list(run.scores.values()) for run in runs] for runs in (plain, seeds))
        averages = [run.average for run in seeds]
        spread = f" ± {stdev(averages):.2f}" if len(averages) > 1 else ""
        rows.append(
            [
                *(name, str(seeds[0].steps)),
                f"{fmean(run.positions for run in seeds) / 1e6:.2f}",
                f"{fmean(run.step_seconds for run in seeds):.2f}",
                f"{fmean(run.loss for run in seeds):.2f}",
                f"{fmean(run.accuracy for run in seeds):.1f}",
                f"{fmean(averages):.2f}{spread}",
                "" if name == "plain" else str(of_groups(old, new)),
            ]
        )
    return rows


def table_by_task(runs: Sequence[Run]) -> str:
    """Return every task's mean over the seeds, with a column for each condition."""
    conditions = list(dict.fromkeys(run.condition for run in runs))
    rows = []
    for task in runs[0].scores:
        means = [
            fmean(run.scores[task] for run in runs if run.condition == name) for name in conditions
        ]
        rows.append([task, *(f"{mean:.2f}" for mean in means)])
    return harness.markdown(("task", *conditions), rows)


def paragraphs_of(equal_steps: Sequence[Run], equal_positions: Sequence[Run]) -> list[str]:
    """Return the results; ``equal_positions`` is empty where only some conditions ran."""
    tables = {"As many positions read": equal_positions, "As many steps": equal_steps}
    compared = {head: runs for head, runs in tables.items() if runs}
    paragraphs = []
    for head, runs in compared.items():
        paragraphs += [f"### {head}", harness.markdown(COLUMNS, rows_of(runs))]
    head, runs = next(iter(compared.items()))
    return [*paragraphs, f"### By task, {head[0].lower()}{head[1:]}", table_by_task(runs)]


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "two_by_two.md")
    parser.add_argument("--model", default="runs/starter-mlm/model")
    parser.add_argument("--surrogate", default="starter")
    parser.add_argument("--output", type=Path, default=Path("runs/two_by_two"))
    parser.add_argument("--batches", type=Path, help="A batch table. Default: one is made.")
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=150, help="Steps of the two-stage models.")
    parser.add_argument("--jobs", type=int, default=2, help="Runs that train at the same time.")
    options = parser.parse_args(words)
    if "plain" not in options.conditions:
        parser.error("--conditions: the others are compared with plain; add it")
    return options


def main() -> None:
    """Train and evaluate all conditions, and add to the results."""
    options = read_options()
    copy_backbone(options)
    options.batches = options.batches or options.output / "batches"
    if not (options.batches / "table.json").is_file():
        embedkit("cluster", options.batches, f"--surrogate={options.surrogate}", "--max-tokens=64")

    # In the order of CONDITIONS, whatever the order of the words.
    conditions = [name for name in CONDITIONS if name in options.conditions]
    equal_steps = trained(conditions, options.steps, options)
    whole = len(conditions) == len(CONDITIONS)
    equal_positions = as_many_positions(equal_steps, options) if whole else []
    paragraphs = paragraphs_of(equal_steps, equal_positions)
    harness.append_section(
        options.results,
        TITLE,
        f"{harness.stamp(torch.device('cpu'))}, one thread a run.\n"
        f"Means over seeds {', '.join(map(str, options.seeds))}; ± is their standard deviation, "
        "brackets are 95 % of a bootstrap over runs and tasks.",
        *paragraphs,
    )
    longer = [run for run in equal_positions if run not in equal_steps]
    harness.write_record(options.results, [asdict(run) for run in equal_steps + longer])
    print(*paragraphs, sep="\n\n")


if __name__ == "__main__":
    main()
