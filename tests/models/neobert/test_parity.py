"""The encoder against the published equations, written down a second time in ``reference``."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest
import torch
from support import neobert_reference
from support.neobert_reference import Shape, random_weights
from support.small_neobert import small_config
from torch import Tensor

from embedkit.models.neobert import NeoBERTForMaskedLM
from embedkit.tokens.batch import TokenBatch

SHAPE = Shape()
LENGTHS = [512, 1, 5000, 7, 1500]

# The first 41 components of the first token of "NeoBERT is the most efficient model of its kind!",
# as published with the release.
PUBLISHED = """
-1.9510374069213867 -0.9967884421348572 -1.2037752866744995 0.24297747015953064
-0.1231154128909111 1.15748131275177 -1.6040924787521362 -1.8666054010391235 -0.5423393249511719
-1.5033859014511108 2.1337497234344482 -1.035761833190918 0.6672560572624207 0.8548232316970825
1.4260377883911133 1.7781187295913696 0.49215567111968994 -1.5952364206314087 3.0107059478759766
0.8425706028938293 -0.02023920789361 -0.17652419209480286 1.5272082090377808 -1.5370515584945679
-2.210336446762085 1.9915522336959839 -0.47231099009513855 -1.5976117849349976 -1.3054083585739136
-1.3994256258010864 2.627300500869751 0.892441987991333 2.0996060371398926 -0.9450390934944153
-1.0044033527374268 -3.512587547302246 3.1640431880950928 0.6829001307487488 -0.7545009851455688
-2.748605728149414 -1.1117602586746216
"""

LOAD_THE_RELEASE = """
import json, torch
from transformers import AutoTokenizer
from embedkit.models.neobert import NeoBERTModel
from embedkit.models.model_files import PINNED
from embedkit.models.neobert.state_dict import load_pretrained
name = "chandar-lab/NeoBERT"
tokenizer = AutoTokenizer.from_pretrained(name, revision=PINNED[name])
tokens = tokenizer("NeoBERT is the most efficient model of its kind!", return_tensors="pt")
with torch.no_grad():
    states = load_pretrained(NeoBERTModel, name)(**tokens).last_hidden_state
print(json.dumps(states[0, 0, :41].tolist()))
"""


def ids_of(length: int) -> list[int]:
    return [(7 * place * place + place + length) % SHAPE.vocabulary for place in range(length)]


def model(attention: str = "sdpa") -> NeoBERTForMaskedLM:
    config = small_config(SHAPE, attn_implementation=attention)
    ours = NeoBERTForMaskedLM(config).double().eval()
    ours.load_state_dict(random_weights(SHAPE))
    return ours


@cache
def expected(length: int) -> Tensor:
    return neobert_reference.hidden_states(random_weights(SHAPE), SHAPE, ids_of(length))


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.slow
def test_unpadded_sequences_have_the_states_of_the_equations(attention: str) -> None:
    tokens = TokenBatch.from_lists([ids_of(length) for length in LENGTHS])
    states = model(attention).model.encode_tokens(tokens)
    theirs = torch.cat([expected(length) for length in LENGTHS])
    assert largest_difference(states, theirs) < 1e-10


@torch.no_grad()
def test_padded_sequences_have_the_states_and_logits_of_the_equations() -> None:
    lengths = [7, 512, 1]
    tokens = TokenBatch.from_lists([ids_of(length) for length in lengths])
    input_ids, mask = tokens.padded(0)
    ours = model()
    states = ours.model(input_ids, mask).last_hidden_state
    logits = ours(input_ids, mask).logits
    for row, length in enumerate(lengths):
        assert largest_difference(states[row, :length], expected(length)) < 1e-10
        theirs = neobert_reference.logits(random_weights(SHAPE), expected(length))
        assert largest_difference(logits[row, :length], theirs) < 1e-10
        assert not states[row, length:].any()


@torch.no_grad()
@pytest.mark.parametrize("mistake", ["half_rotation", "rows_by_kind", "gate_last"])
def test_the_comparison_notices_what_ports_get_wrong(mistake: str) -> None:
    wrong = neobert_reference.hidden_states(
        random_weights(SHAPE), SHAPE, ids_of(7), **{mistake: True}
    )
    states = model().model.encode_tokens(TokenBatch.from_lists([ids_of(7)]))
    assert largest_difference(states, wrong) > 0.5
    assert largest_difference(states, expected(7)) < 1e-10


@pytest.mark.network
def test_the_released_weights_give_the_published_values() -> None:
    online = {**os.environ, "HF_HUB_OFFLINE": "0"}
    run = [sys.executable, "-c", LOAD_THE_RELEASE]
    done = subprocess.run(run, capture_output=True, text=True, env=online)
    assert done.returncode == 0, done.stderr
    ours = torch.tensor(json.loads(done.stdout.splitlines()[-1]))
    theirs = torch.tensor([float(each) for each in PUBLISHED.split()])
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)
