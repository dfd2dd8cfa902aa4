"""Embedded documents that a two-stage model reads with every text, and vectors that record them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from embedkit.errors import UserError
from embedkit.storage.hashing import sha256_of, sha256_of_text

_KEY = "embedkit_context"


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """Documents of a corpus as embedded by the first encoder, once for all texts.

    Shapes: ``vectors`` ``(n, D)`` fp32, on the CPU.
    """

    vectors: Tensor
    model: str
    """``weights_identity`` of the model that computed the vectors."""
    corpus_size: int
    """Number of documents in the corpus from which the context was drawn."""
    seed: int
    """Random seed of the draw of documents."""

    @property
    def hash(self) -> str:
        """SHA-256 hash of the vectors and the model, on which every text's vector depends."""
        vectors = sha256_of({"vectors": self.vectors.to(torch.float32)})
        return sha256_of_text(f"{self.model} {vectors}")

    @property
    def origin(self) -> dict[str, Any]:
        """All that files record of a context besides its vectors."""
        named = {"model": self.model, "corpus_size": self.corpus_size, "seed": self.seed}
        return {**named, "hash": self.hash}

    def save(self, path: str | Path) -> None:
        """Write the vectors and their origin as one safetensors file."""
        metadata = {_KEY: json.dumps(self.origin)}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_file({"vectors": self.vectors.contiguous()}, path, metadata=metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a context from a file that ``save`` wrote.

        Raises:
            UserError: there is no such file, it holds no context, or it was changed.
        """
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {})[_KEY])
                vectors = file.get_tensor("vectors")
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except (SafetensorError, KeyError, OSError, ValueError):
            raise UserError(f"{path}: is no context; build one with model.build_context") from None
        digest = facts.pop("hash")
        context = cls(vectors, **facts)
        if context.hash != digest:
            raise UserError(f"{path}: its vectors are not those it was saved with; build it anew")
        return context


class Embeddings(NDArray[np.float32]):
    """Numpy array of unit vectors of texts that records the context in which they were embedded.

    Numpy's functions refuse vectors of several contexts, and their results are plain arrays.

    Shapes: ``(n, D)`` of a list of texts, or ``(D,)`` of a single text.
    """

    context: str
    """Hash of the context in which the texts were embedded."""

    def __new__(cls, vectors: NDArray[np.float32], context: str) -> Self:
        embeddings = np.asarray(vectors).view(cls)
        embeddings.context = context
        return embeddings

    def __array_finalize__(self, origin: object) -> None:
        # Numpy calls this for slices and copies.
        self.context = getattr(origin, "context", "")

    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", ())
        _check_one_context([*inputs, *out])
        if out:
            options["out"] = _plain(out)
        result = getattr(ufunc, method)(*_plain(inputs), **options)
        # As in numpy, vectors that are changed in place, and their context, are the result.
        return out[0] if len(out) == 1 and out[0] is not None else result

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        _check_one_context([*args, *options.values()])
        return function(*_plain(args), **{name: _plain(value) for name, value in options.items()})

    def dot(self, other: Any, out: Any = None) -> Any:
        return np.dot(self, other, out)

    def __reduce__(self) -> Any:
        return Embeddings, (self.vectors, self.context)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Vectors as a plain array, without their context."""
        return np.asarray(self)


def _check_one_context(values: Sequence[Any]) -> None:
    """Raise UserError if vectors among ``values``, or in lists of them, have several contexts."""
    contexts = set()
    for value in values:
        inside = value if isinstance(value, list | tuple) else [value]
        contexts |= {item.context for item in inside if isinstance(item, Embeddings)}
    if len(contexts) > 1:
        one, other = sorted(contexts)[:2]
        raise UserError(
            f"vectors were embedded in the contexts {one[:12]} and {other[:12]}: such vectors "
            "cannot be compared; embed all in one context"
        )


def _plain(value: Any) -> Any:
    """Return a value in which vectors, also those in a list or tuple, are plain arrays."""
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value.vectors if isinstance(value, Embeddings) else value


def similarity(queries: Embeddings, documents: Embeddings) -> NDArray[np.float32]:
    """Return the cosines of all queries with all documents; a single text counts as a list of one.

    Shapes: ``(q, D)``, ``(n, D)`` -> ``(q, n)``.

    Raises:
        UserError: the two were embedded in different contexts, or by different models.
    """
    return np.inner(*(vectors.reshape(-1, vectors.shape[-1]) for vectors in (queries, documents)))
