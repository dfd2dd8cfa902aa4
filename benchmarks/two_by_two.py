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

Writes ``--results`` anew, and a JSON file with every score beside it.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev

import torch

from embedkit.evaluation.comparing.comparison import interval
from embedkit.evaluation.summary import Summary
from embedkit.models import hub
from embedkit.recipe import Recipe, load_recipe

HERE = Path(__file__).parent
RECIPE = HERE / "two_by_two.toml"
RESULTS = HERE / "results" / "two_by_two.md"
ONE_STAGE = ("objective.kind=contrastive", "context=")
SHUFFLED = ("data.batches=shuffled",)
CONDITIONS = {
    "plain": (*ONE_STAGE, *SHUFFLED),
    "contextual batches": ONE_STAGE,
    "contextual model": SHUFFLED,
    "both": (),
}
HEAD = (
    "| | steps | million positions | s/step | loss | accuracy | average | to plain |\n"
    "|---|---:|---:|---:|---:|---:|---:|---|\n"
)
LAST = 30
"""Steps over which loss and accuracy are averaged."""


@dataclass(frozen=True)
class Run:
    condition: str
    seed: int
    steps: int
    positions: int
    """That went through an encoder: a text of the second stage counts its context too."""
    step_seconds: float
    """Median, on one thread."""
    loss: float
    accuracy: float
    scores: dict[str, float]
    """Of each task, times 100."""

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
        embedkit("finetune", output, "--overwrite", *(f"--set={each}" for each in overrides))
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
        scores={name: 100 * each.score for name, each in Summary.read(summary).scores.items()},
    )


def positions_of(tokens: float, recipe: Recipe) -> int:
    slots = recipe.context.num_context if recipe.context else 0
    return int(tokens) + 2 * recipe.data.batch_size * slots


def embedkit(command: str, output: Path, *arguments: str) -> None:
    """A command on one thread, its output in a file beside its folder."""
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
    """The runs of some conditions, with every seed; ``--jobs`` at a time."""
    wanted = [(name, seed) for name in conditions for seed in options.seeds]
    run = partial(train, steps=steps, options=options)
    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(lambda each: run(*each), wanted))


def as_many_positions(runs: Sequence[Run], options: argparse.Namespace) -> list[Run]:
    """One stage for as many positions as two stages read, beside the ``runs`` of two stages."""
    by_name = {name: [run for run in runs if run.condition == name] for name in CONDITIONS}
    ratio = sum(run.positions for run in by_name["both"]) / sum(
        run.positions for run in by_name["plain"]
    )
    longer = trained(list(CONDITIONS)[:2], round(options.steps * ratio), options)
    return longer + by_name["contextual model"] + by_name["both"]


def rows_of(runs: Sequence[Run]) -> str:
    """One line of the table for each condition, with its difference to the plain one by task."""
    plain = [run for run in runs if run.condition == "plain"]
    lines = []
    for name in CONDITIONS:
        own = [run for run in runs if run.condition == name]
        if not own:
            continue
        differences = [
            fmean(run.scores[task] for run in own) - fmean(run.scores[task] for run in plain)
            for task in own[0].scores
        ]
        gap = interval(differences)
        told = "" if own == plain else f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"
        averages = [run.average for run in own]
        spread = f" ± {stdev(averages):.2f}" if len(averages) > 1 else ""
        lines.append(
            f"| {name} | {own[0].steps} | {fmean(run.positions for run in own) / 1e6:.2f} "
            f"| {fmean(run.step_seconds for run in own):.2f} "
            f"| {fmean(run.loss for run in own):.2f} | {fmean(run.accuracy for run in own):.1f} "
            f"| {fmean(averages):.2f}{spread} | {told} |"
        )
    return "\n".join(lines)


def table_of(runs: Sequence[Run], conditions: Sequence[str]) -> str:
    """Every task's mean over the seeds, a column a condition."""
    lines = [f"| task | {' | '.join(conditions)} |", f"|---|{'---:|' * len(conditions)}"]
    for task in runs[0].scores:
        means = [
            fmean(run.scores[task] for run in runs if run.condition == name) for name in conditions
        ]
        lines.append(f"| {task} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    return "\n".join(lines)


def page(equal_steps: Sequence[Run], equal_positions: Sequence[Run], seeds: Sequence[int]) -> str:
    """The results; ``equal_positions`` is empty where only some conditions ran."""
    tables = {"As many positions read": equal_positions, "As many steps": equal_steps}
    sections = [f"## {head}\n\n{HEAD}{rows_of(runs)}" for head, runs in tables.items() if runs]
    head, runs = next((head, runs) for head, runs in tables.items() if runs)
    conditions = list(dict.fromkeys(run.condition for run in runs))
    return "\n\n".join(
        [
            "# Contextual batches and the contextual model",
            f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, "
            f"torch {torch.__version__}, `python {shlex.join(sys.argv)}`.\n"
            f"Means over seeds {', '.join(map(str, seeds))}; ± is their standard deviation, "
            "brackets are 95 % of a bootstrap over tasks.",
            *sections,
            f"## By task, {head[0].lower()}{head[1:]}\n\n{table_of(runs, conditions)}\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="runs/starter-mlm/model")
    parser.add_argument("--surrogate", default="starter")
    parser.add_argument("--output", type=Path, default=Path("runs/two_by_two"))
    parser.add_argument("--batches", type=Path, help="a batch table; by default made in --output")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--set", action="append", default=[], help="as of embedkit finetune")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=150, help="of two stages")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if "plain" not in options.conditions:
        parser.error("--conditions: the others are compared with plain; add it")
    copy_backbone(options)
    options.batches = options.batches or options.output / "batches"
    if not (options.batches / "table.json").is_file():
        embedkit("cluster", options.batches, f"--surrogate={options.surrogate}", "--max-tokens=64")

    equal_steps = trained(options.conditions, options.steps, options)
    whole = len(options.conditions) == len(CONDITIONS)
    equal_positions = as_many_positions(equal_steps, options) if whole else []
    options.results.write_text(page(equal_steps, equal_positions, options.seeds))
    longer = [run for run in equal_positions if run not in equal_steps]
    scores = options.results.with_name(f"{options.results.stem}_{datetime.now(UTC):%Y-%m-%d}.json")
    scores.write_text(json.dumps([asdict(run) for run in equal_steps + longer], indent=1) + "\n")
    print(options.results.read_text())


if __name__ == "__main__":
    main()
