"""The tools that open an exported model, and the lines by which each is used."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tool:
    """A library that makes vectors of texts with a model's folder."""

    name: str
    distribution: str
    """Package on PyPI whose version is shown, and without which the tool is not installed."""
    opens: Literal["weights", "graph"]
    """The tool reads ``model.safetensors`` (weights) or ``onnx/model.onnx`` (graph)."""
    lines: str
    """Python that makes ``query_vectors`` of ``QUERIES`` and ``document_vectors`` of ``DOCUMENTS``.

    It reads ``FOLDER``, ``QUERY_PROMPT``, ``DOCUMENT_PROMPT`` and ``MAX_TOKENS`` too.
    """


TOOLS = (
    Tool(
        "sentence-transformers",
        "sentence-transformers",
        "weights",
        """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(FOLDER)
query_vectors = model.encode_query(QUERIES)
document_vectors = model.encode_document(DOCUMENTS)
""",
    ),
    Tool(
        "sentence-transformers, ONNX backend",
        "optimum-onnx",
        "graph",
        """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(FOLDER, backend="onnx")
query_vectors = model.encode_query(QUERIES)
document_vectors = model.encode_document(DOCUMENTS)
""",
    ),
    Tool(
        "ONNX Runtime",
        "onnxruntime",
        "graph",
        """\
import numpy as np
import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
session = onnxruntime.InferenceSession(f"{FOLDER}/onnx/model.onnx")

def encode(texts, prompt):
    texts = [prompt + text for text in texts]
    limits = {"padding": True, "truncation": True, "max_length": MAX_TOKENS}
    batch = tokenizer(texts, padding_side="right", return_tensors="np", **limits)
    inputs = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    return session.run(["sentence_embedding"], inputs)[0]

query_vectors = encode(QUERIES, QUERY_PROMPT)
document_vectors = encode(DOCUMENTS, DOCUMENT_PROMPT)
""",
    ),
    Tool(
        "LangChain",
        "langchain-huggingface",
        "weights",
        """\
from langchain_huggingface import HuggingFaceEmbeddings

model = HuggingFaceEmbeddings(
    model_name=FOLDER,
    encode_kwargs={"prompt": DOCUMENT_PROMPT},
    query_encode_kwargs={"prompt": QUERY_PROMPT},
)
query_vectors = [model.embed_query(query) for query in QUERIES]
document_vectors = model.embed_documents(DOCUMENTS)
""",
    ),
    Tool(
        "LlamaIndex",
        "llama-index-embeddings-huggingface",
        "weights",
        """\
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

model = HuggingFaceEmbedding(
    model_name=FOLDER,
    query_instruction=QUERY_PROMPT,
    text_instruction=DOCUMENT_PROMPT,
    normalize=False,  # The model's own modules do, if it has unit vectors.
)
query_vectors = [model.get_query_embedding(query) for query in QUERIES]
document_vectors = model.get_text_embedding_batch(DOCUMENTS)
""",
    ),
)
