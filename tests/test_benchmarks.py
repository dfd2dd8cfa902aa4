"""What benchmarks tell a user who lacks an extra."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "module", "extra"),
    [
        ("train_vs_sentence_transformers.py", "accelerate", "dev"),
        ("memory_vs_batch.py", "psutil", "dev"),
        ("cluster.py", "faiss", "faiss"),
        ("loss_curve.py", "matplotlib", "plot"),
    ],
)
def test_a_benchmark_names_the_extra_that_it_needs(script: str, module: str, extra: str) -> None:
    # Without site-packages nothing is installed: no import of torch can come before the answer.
    command = [sys.executable, "-S", str(BENCHMARKS / script)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {script} needs {module}, which is not installed: "
        f"pip install -c constraints.txt -e '.[{extra}]'\n"
    )
