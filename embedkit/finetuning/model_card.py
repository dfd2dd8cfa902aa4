"""Writes the model card of an exported model."""

import json
from collections.abc import Sequence

import tomli_w

from embedkit.data.pairs.records import Records
from embedkit.errors import some
from embedkit.evaluation.comparing.comparison import remarks_on
from embedkit.evaluation.summary import Summary, comparison
from embedkit.evaluation.tables import as_block, as_code, as_markdown, as_prose
from embedkit.finetuning.card_metadata import front_matter
from embedkit.finetuning.mixture import Mixture
from embedkit.finetuning.model import undecided_sides
from embedkit.finetuning.validator import Best
from embedkit.models.embedder import Embedder
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.head import Projection
from embedkit.recipe import Recipe
from embedkit.tokens.prompts import SIDES, benchmark_prompts

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
queries = {query}(["a query"]{query_prompt})
documents = {document}(["a document", "another one"]{document_prompt})
print(model.similarity(queries, documents))
"""

_USE_IN_CONTEXT = """\
import random

from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder", trust_remote_code=True)
corpus = ["a document", "another one"]
context = model[0].build_context(random.sample(corpus, min({slots}, len(corpus))){context_prompt})
queries = {query}(["a query"]{query_prompt}, dataset_embeddings=context)
documents = {document}(corpus{document_prompt}, dataset_embeddings=context)
print(model.similarity(queries, documents))
"""

_VECTORS_IN_CONTEXT = """\
the mean of the second encoder's last hidden states over a text's own tokens, in
front of which it reads what the first encoder makes of {slots} documents of the corpus"""

_CARD = """\
---
{metadata}
---

# {title}

An embedding model of {width} dimensions: {base}, fine-tuned for {steps} with embedkit.

```python
{use}```

Vectors are {vectors}, scaled to unit length. Texts are cut at
{max_tokens} tokens. Prompts: {prompts}.{untrained}

{widths}## Data

| source | rows | share of steps | licence |
|---|---:|---:|---|{data}

No licence of the model follows from these: whoever publishes it chooses one that they allow.

## Recipe

{recipe}{scores}"""


def model_card(
    name: str,
    model: EmbeddingModel,
    recipe: Recipe,
    mixture: Mixture,
    best: Best | None,
    before: Summary | None,
    after: Summary | None,
) -> str:
    """Return Markdown with the front matter that the Hugging Face hub reads.

    ``name`` is the run's. What comes from data and settings is escaped, so that it is shown as it
    is and changes nothing of the page.
    """
    calls = _calls(model, mixture.records)
    if recipe.context is None:
        pooling = {"mean": "mean", "cls": "first"}.get(
            model.pooling, f"pooling {as_code(model.pooling)}"
        )
        vectors, use = (
            f"the {pooling} of the last hidden states{_dense(model)}",
            _USE.format(**calls),
        )
    else:
        slots = recipe.context.num_context
        vectors = _VECTORS_IN_CONTEXT.format(slots=slots)
        use = _USE_IN_CONTEXT.format(slots=slots, **calls)
    data = "".join(
        f"\n| {as_prose(records.name)} | {len(records):,} | {share:.1%} | "
        f"{as_prose(records.license or 'not stated')} |"
        for records, share in zip(mixture.records, mixture.shares, strict=True)
    )
    widths = scores = ""
    if shorter := [width for width in recipe.objective.needs.widths if width < model.width]:
        widths = _WIDTHS.format(widths=" or ".join(map(str, shorter)), last=shorter[-1])
    if after is not None:
        table = comparison(before, after) if before else after.table()
        changed = remarks_on(before, after) if before else []
        notes = "".join(f"- {as_prose(note)}\n" for note in (*changed, *after.prompts()))
        title = as_prose(str(table.title))
        scores = f"\n## Scores\n\n{title}:\n\n{as_markdown(table)}\n{notes}"
    return _CARD.format(
        metadata=front_matter(name, recipe.model, after, mixture.manifests),
        base=as_code(recipe.model),
        title=as_prose(name),
        width=model.width,
        use=use,
        steps=_steps(recipe, best),
        vectors=vectors,
        max_tokens=model.max_tokens,
        widths=widths,
        prompts=_prompts(model, recipe),
        untrained=_untrained(model),
        data=data,
        recipe=as_block(tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True)), "toml"),
        scores=scores,
    )


def _steps(recipe: Recipe, best: Best | None) -> str:
    """Return how many steps the weights were trained for, and by what they were chosen."""
    if best is None:
        return f"{recipe.steps} steps"
    return (
        f"{best.step} of {best.last_step} steps (the best of {best.measured} by "
        f"{best.metric} on validation data, {best.value:.4f})"
    )


def _dense(model: EmbeddingModel) -> str:
    """Name the Dense modules that map the pooled states, if there are any."""
    head = model.head if isinstance(model, Embedder) else ()
    count = sum(isinstance(module, Projection) for module in head)
    return f", behind {count} Dense module{'s' * (count > 1)}" if count else ""


def _calls(model: EmbeddingModel, records: Sequence[Records]) -> dict[str, str]:
    """Return the calls by which queries and documents are read behind prompts of the training."""
    calls = {"context_prompt": ""}
    for side in SIDES:
        calls |= {side: f"model.encode_{side}", f"{side}_prompt": ""}
    for side, name in undecided_sides(model, records).items():
        calls |= {side: "model.encode", f"{side}_prompt": f", prompt_name={json.dumps(name)}"}
        if side == "document":
            calls["context_prompt"] = f", prompt=model.prompts[{json.dumps(name)}]"
    return calls


def _untrained(model: EmbeddingModel) -> str:
    """Return a sentence on the stored prompts that training never put before a text, if any."""
    trained = model.trained_prompts
    if trained is None:
        return ""
    sides = {name: name.rpartition("-")[2] for name in model.prompts}
    unknown = [
        as_code(name)
        for name, prompt in model.prompts.items()
        if not trained.has(sides[name] if sides[name] in SIDES else "text", prompt)
    ]
    if not unknown:
        return ""
    plural = "s" * (len(unknown) > 1)
    return f" No text was read in training behind the stored prompt{plural} {some(unknown)}."


def _prompts(model: EmbeddingModel, recipe: Recipe) -> str:
    """Return the prompts of the model; those of a benchmark's many tasks go by its name."""
    benchmark = benchmark_prompts() if recipe.embedder.benchmark_prompts else {}
    listed = [
        f"{as_prose(k)} {as_code(v)}"
        for k, v in model.prompts.items()
        if v and benchmark.get(k) != v
    ]
    if benchmark:
        listed.append("one for each task of MTEB(eng, v1), which mteb gives by itself")
    return ", ".join(listed) or "none"
