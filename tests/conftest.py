"""Settings that every test needs, made before torch or the Hugging Face libraries are imported."""

import os

# Nothing in the tests may reach a hub; a test that tries fails at once instead of waiting.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

# Forked gloo ranks hang when the parent has started a thread pool.
torch.set_num_threads(1)
