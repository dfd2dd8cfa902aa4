"""What a run says of itself: the overview on screen and the model card of the export."""

import json

from rich.table import Table
from torch import nn

from embedkit.data.schedule import Schedule
from embedkit.evaluation.summary import Summary, as_text, comparison
from embedkit.mixture import Mixture
from embedkit.models.embedder import Embedder
from embedkit.recipe import Recipe

_WIDTHS = """\
## Shorter vectors

The first {widths} features of a vector were trained to be one themselves:

```python
model = SentenceTransformer("path/to/this/folder", truncate_dim={last})
vectors = model.encode(["a text"], normalize_embeddings=True)  # of unit length again
```

"""

_CARD = """\
---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
base_model: {base}
tags:
- sentence-transformers
- embedkit
---

# {title}

An embedding model of {width} dimensions: `{base}`, fine-tuned for {steps} steps with embedkit.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
queries = model.encode_query(["a query"])
documents = model.encode_document(["a document", "another one"])
print(model.similarity(queries, documents))
```

Vectors are the {pooling} of the last hidden states, scaled to unit length. Texts are cut at
{max_tokens} tokens. Prompts: {prompts}.

{widths}## Data

{data}

## Recipe

```json
{recipe}
```
{scores}"""


def overview(
    recipe: Recipe, mixture: Mixture, schedule: Schedule, embedder: Embedder, precision: str
) -> Table:
    """What is about to be trained on what, and how often each source will be read."""
    title = (
        f"{embedder.name}, {_size(embedder)}, {embedder.device}, {precision}; "
        f"{recipe.steps} steps of {recipe.data.batches} batches"
    )
    table = Table(title=title)
    table.add_column("source")
    for column in ("rows", "batch", "share", "passes"):
        table.add_column(column, justify="right")
    rows = zip(mixture.records, mixture.sources, mixture.shares, schedule.passes(), strict=True)
    for records, source, share, passes in rows:
        table.add_row(
            records.name,
            f"{len(records):,}",
            str(min(source.batch_size, source.rows)),
            f"{share:.1%}",
            f"{passes:.2f}",
        )
    return table


def _size(model: nn.Module) -> str:
    """How many parameters train of how many, and what training keeps of them between two steps."""
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    count = sum(each.numel() for each in parameters)
    # Besides the weights themselves: the gradient and the two moments of what is trained.
    held = sum(each.nbytes for each in parameters) + 3 * sum(each.nbytes for each in trained)
    part = sum(each.numel() for each in trained)
    said = f"{part / 1e6:.2f} M of " if part < count else ""
    return f"{said}{count / 1e6:.1f} M parameters trained in {held / 2**20:,.0f} MiB"


def model_card(
    embedder: Embedder,
    recipe: Recipe,
    mixture: Mixture,
    before: Summary | None,
    after: Summary | None,
) -> str:
    """Markdown with the front matter that the Hugging Face hub reads."""
    rows = [
        f"| {records.name} | {len(records):,} | {share:.1%} | {records.license or 'not stated'} |"
        for records, share in zip(mixture.records, mixture.shares, strict=True)
    ]
    data = ["| source | rows | share of steps | licence |", "|---|---:|---:|---|", *rows]
    shorter = [d for d in recipe.objective.matryoshka_dims or () if d < embedder.backbone.width]
    widths = ""
    if shorter:
        widths = _WIDTHS.format(widths=" or ".join(map(str, shorter)), last=shorter[-1])
    scores = ""
    if after is not None:
        table = comparison(before, after) if before else after.table()
        scores = f"\n## Scores\n\n```\n{as_text(table).rstrip()}\n```\n"
    return _CARD.format(
        base=recipe.model,
        title=embedder.name,
        width=embedder.backbone.width,
        steps=recipe.steps,
        pooling={"mean": "mean", "cls": "first"}[embedder.pooling],
        max_tokens=embedder.max_tokens,
        widths=widths,
        prompts=", ".join(f"{k} `{v}`" for k, v in embedder.prompts.items() if v) or "none",
        data="\n".join(data),
        recipe=json.dumps(recipe.model_dump(mode="json", exclude_none=True), indent=2),
        scores=scores,
    )
