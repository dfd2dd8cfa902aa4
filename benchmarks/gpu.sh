#!/usr/bin/env bash
# On a machine with a CUDA device: check and time everything in one call, from the root of a checkout.
# Results go to benchmarks/results/ and name date, GPU and versions.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
"$python" -m pytest -m gpu
"$python" benchmarks/train_vs_sentence_transformers.py
"$python" benchmarks/pretrain_throughput.py
"$python" benchmarks/pretrain_throughput.py --compile
"$python" benchmarks/contextual_step.py --slots 64 512 --batch 512 --chunks 32768
# Without $EMBEDKIT_DATA the hardness of batches is left out.
"$python" benchmarks/cluster.py
