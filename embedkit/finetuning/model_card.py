"""Writes the model card of an exported model."""

import json

from embedkit.evaluation.summary import Summary, as_text, comparison
from embedkit.finetuning.mixture import Mixture
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import Recipe
from embedkit.tokens.prompts import benchmark_prompts

_WIDTHS = """\
## Shorter vectors

The first {widths} features of a vector were trained to be one themselves:

```python
model = SentenceTransformer("path/to/this/folder", truncate_dim={last})
vectors = model.encode(["a text"], normalize_embeddings=True)  # of unit length again
```

"""

_USE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
queries = model.encode_query(["a query"])
documents = model.encode_document(["a document", "another one"])
print(model.similarity(queries, documents))
"""

_USE_IN_CONTEXT = """\
import random

from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder", trust_remote_code=True)
corpus = ["a document", "another one"]
context = model[0].build_context(random.sample(corpus, min({slots}, len(corpus))))
queries = model.encode_query(["a query"], dataset_embeddings=context)
documents = model.encode_document(corpus, dataset_embeddings=context)
print(model.similarity(queries, documents))
"""

_VECTORS_IN_CONTEXT = """\
the mean of the second encoder's last hidden states over a text's own tokens, in
front of which it reads what the first encoder makes of {slots} documents of the corpus"""

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
{use}```

Vectors are {vectors}, scaled to unit length. Texts are cut at
{max_tokens} tokens. Prompts: {prompts}.

{widths}## Data

| source | rows | share of steps | licence |
|---|---:|---:|---|{data}

## Recipe

```json
{recipe}
```
{scores}"""


def model_card(
    model: EmbeddingModel,
    recipe: Recipe,
    mixture: Mixture,
    before: Summary | None,
    after: Summary | None,
) -> str:
    """Return Markdown with the front matter that the Hugging Face hub reads."""
    if recipe.context is None:
        pooling = {"mean": "mean", "cls": "first"}.get(model.pooling, f"pooling `{model.pooling}`")
        vectors, use = f"the {pooling} of the last hidden states", _USE
    else:
        slots = recipe.context.num_context
        vectors, use = _VECTORS_IN_CONTEXT.format(slots=slots), _USE_IN_CONTEXT.format(slots=slots)
    data = "".join(
        f"\n| {records.name} | {len(records):,} | {share:.1%} | {records.license or 'not stated'} |"
        for records, share in zip(mixture.records, mixture.shares, strict=True)
    )
    widths = scores = ""
    if shorter := [width for width in recipe.objective.needs.widths if width < model.width]:
        widths = _WIDTHS.format(widths=" or ".join(map(str, shorter)), last=shorter[-1])
    if after is not None:
        table = comparison(before, after) if before else after.table()
        scores = f"\n## Scores\n\n```\n{as_text(table).rstrip()}\n```\n"
    return _CARD.format(
        base=recipe.model,
        title=model.name,
        width=model.width,
        use=use,
        steps=recipe.steps,
        vectors=vectors,
        max_tokens=model.max_tokens,
        widths=widths,
        prompts=_prompts(model, recipe),
        data=data,
        recipe=json.dumps(recipe.model_dump(mode="json", exclude_none=True), indent=2),
        scores=scores,
    )


def _prompts(model: EmbeddingModel, recipe: Recipe) -> str:
    """Return the prompts of the model; those of a benchmark's many tasks go by its name."""
    benchmark = benchmark_prompts() if recipe.embedder.benchmark_prompts else {}
    listed = [f"{k} `{v}`" for k, v in model.prompts.items() if v and benchmark.get(k) != v]
    if benchmark:
        listed.append("one for each task of MTEB(eng, v1), which mteb gives by itself")
    return ", ".join(listed) or "none"
