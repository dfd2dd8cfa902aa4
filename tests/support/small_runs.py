"""Runs that take a second: a recipe over pairs and triplets, and what tells two runs apart."""

import json
import random
from pathlib import Path
from typing import Any

import tomli_w

STEPS = 12
_WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heron",
    "inlet",
    "jetty",
    "knoll",
    "lagoon",
    "mesa",
]


def write_small_recipe(folder: Path, model: Path) -> Path:
    """Write ``small.toml`` over the sources ``pairs`` and ``triplets``, with their manifests."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {"pairs": (60, 0), "triplets": (40, 3)}
    for name, (rows, negatives) in sources.items():
        write_source(folder, name, rows, negatives)
    recipe = {
        "seed": 3,
        "steps": STEPS,
        "precision": "fp32",
        "model": str(model),
        "data": {
            "batch_size": 8,
            "max_query_tokens": 32,
            "max_document_tokens": 32,
            "workers": 0,
            "mix": [{"manifest": str(folder / f"{name}.toml")} for name in sources],
        },
        "optim": {"lr": 1e-3, "warmup_steps": 3},
        "checkpoints": {"every": 4},
        "logging": {"every": 1},
    }
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(recipe))
    return path


def write_source(folder: Path, name: str, rows: int, negatives: int) -> Path:
    """Write ``name.jsonl`` with texts of 2 to 12 words, and its manifest."""
    rng = random.Random(name)

    def text() -> str:
        return " ".join(rng.choices(_WORDS, k=rng.randint(2, 12)))

    lines = [
        {
            "query": f"{number} {text()}",
            "positive": f"{text()} {number}",
            "negatives": [text() for _ in range(negatives)],
        }
        for number in range(rows)
    ]
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = {
        "source": {"kind": "files", "files": [{"path": str(file)}]},
        "columns": {"negatives": "negatives"},
        "prompts": {"query": "query: "},
    }
    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps(manifest))
    return path


def write_small_pretraining(folder: Path, tokenizer: str) -> Path:
    """Write ``mlm.toml`` over the texts ``short`` and ``long``, with their manifests."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for name, words in {"short": 12, "long": 60}.items():
        texts = [" ".join(rng.choices(_WORDS, k=rng.randint(2, words))) for _ in range(60)]
        file = folder / f"{name}.jsonl"
        file.write_text(
            "".join(json.dumps({"text": f"{i} {t}"}) + "\n" for i, t in enumerate(texts))
        )
        manifest = {
            "source": {"kind": "files", "files": [{"path": str(file)}]},
            "columns": {"text": "text"},
            "held_out": {"share": 0.2},
        }
        (folder / f"{name}.toml").write_text(tomli_w.dumps(manifest))
    recipe = {
        "seed": 3,
        "steps": STEPS,
        "precision": "fp32",
        "model": {
            "tokenizer": tokenizer,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "max_position_embeddings": 24,
        },
        "data": {
            "max_tokens": 24,
            "packing": "exact",
            "batch_tokens": 192,
            "draw_rows": 4,
            "micro_batch_tokens": 50,
            "workers": 0,
            "mix": [
                {"manifest": str(folder / "short.toml"), "weight": 0.5},
                {"manifest": str(folder / "long.toml"), "weight": 0.25},
                {"manifest": str(folder / "long.toml"), "weight": 0.25, "min_tokens": 30},
            ],
        },
        "objective": {"kind": "masked_lm"},
        "optim": {"lr": 1e-2, "warmup_steps": 3},
        "checkpoints": {"every": 4},
        "logging": {"every": 1},
        "held_out": {"every": 6, "rows": 8},
    }
    path = folder / "mlm.toml"
    path.write_text(tomli_w.dumps(recipe))
    return path


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, without what time it took."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    timed = {"seconds", "mfu"}
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def state_of(run: Path) -> dict[str, str]:
    """The hashes of weights and moments in the newest checkpoint."""
    newest = max((run / "checkpoints").glob("step-*"))
    hashes: dict[str, str] = json.loads((newest / "sha256.json").read_text())
    # What else the state holds may differ between two runs: how often to save, for one.
    return {"step": newest.name} | {k: v for k, v in hashes.items() if k != "state.json"}
