from collections.abc import Callable

import pytest
import torch
from support.tiny_bert import tiny_bert
from support.tiny_neobert import tiny_masked_lm
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
)
from transformers.modeling_outputs import MaskedLMOutput

from embedkit.evaluation.perplexity import masked_token_scorer
from embedkit.evaluation.perplexity.masked_token_scorer import MaskedTokenScorer

VOCABULARY = 50
MASK = 3
IDS = torch.tensor([1, 20, 21, 20, 40, 8, 30, 30, 2])
POSITIONS = torch.tensor([1, 2, 3, 5, 7])


class LooksAround(PreTrainedModel):
    """A masked language model whose head mixes neighbours."""

    config_class = BertConfig
    base_model_prefix = "bert"
    _supports_sdpa = True

    def __init__(self) -> None:
        bert = tiny_bert(dropout=0.0, width=16, vocabulary=VOCABULARY)
        super().__init__(bert.config)
        self.bert = bert
        self.mix = nn.Conv1d(16, VOCABULARY, kernel_size=3, padding=1)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, return_dict: bool
    ) -> MaskedLMOutput:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return MaskedLMOutput(logits=self.mix(states.mT).mT)


def bert() -> PreTrainedModel:
    return BertForMaskedLM(tiny_bert(dropout=0.0, width=16, vocabulary=VOCABULARY).config)


def roberta() -> PreTrainedModel:
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=34,
        initializer_range=0.2,
    )
    return RobertaForMaskedLM(config)


def distilbert() -> PreTrainedModel:
    config = DistilBertConfig(
        vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=2, hidden_dim=32, initializer_range=0.2
    )
    return DistilBertForMaskedLM(config)


def modernbert() -> PreTrainedModel:
    config = ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.2,
        pad_token_id=0,
    )
    return ModernBertForMaskedLM(config)


def neobert() -> PreTrainedModel:
    return tiny_masked_lm(vocab_size=VOCABULARY)


MODELS = [bert, roberta, distilbert, modernbert, neobert, LooksAround]


def made(model: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(0)
    return model().double().eval()


def plain_losses(model: PreTrainedModel) -> Tensor:
    """One forward for each position, and the logits of all of them."""
    losses = []
    for position in POSITIONS:
        masked = IDS.clone()
        masked[position] = MASK
        with torch.no_grad():
            logits = model(
                input_ids=masked[None], attention_mask=torch.ones(1, len(IDS)), return_dict=True
            ).logits[0]
        losses.append(-logits[position].log_softmax(0)[IDS[position]])
    return torch.stack(losses)


@pytest.mark.parametrize("tokens", [1, 20, 1000])
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_a_plain_loop(
    model: Callable[[], PreTrainedModel], tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked_token_scorer, "_TOKENS", tokens)
    network = made(model)
    found = MaskedTokenScorer(network, MASK).losses(IDS, POSITIONS)
    torch.testing.assert_close(found, plain_losses(network), rtol=0, atol=1e-10)
    assert found.dtype == torch.float64


def widths_of_logits(network: PreTrainedModel) -> list[int]:
    """How many positions the logits of each forward are for, while a document is scored."""
    guesser = MaskedTokenScorer(network, MASK)
    seen: list[int] = []
    network.register_forward_hook(lambda _m, _i, output: seen.append(output.logits.shape[1]))
    guesser.losses(IDS, POSITIONS)
    return seen


@pytest.mark.parametrize("model", [bert, roberta, distilbert, modernbert, neobert])
def test_only_masked_positions_go_through_a_head(model: Callable[[], PreTrainedModel]) -> None:
    assert widths_of_logits(made(model)) == [1]


def test_logits_of_all_positions_are_kept_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_token_scorer, "_LOGITS", 2 * len(IDS) * VOCABULARY)
    assert widths_of_logits(made(LooksAround)) == [len(IDS)] * 3


def test_a_model_is_known_by_its_network_its_mask_and_its_precision() -> None:
    network = made(bert)
    first = MaskedTokenScorer(network, MASK).identity
    other_heads = made(bert)
    other_heads.config.num_attention_heads *= 2
    assert MaskedTokenScorer(other_heads, MASK).identity != first
    assert MaskedTokenScorer(made(bert), MASK).identity == first
    assert MaskedTokenScorer(network, MASK + 1).identity != first
    assert MaskedTokenScorer(network, MASK, autocast=torch.bfloat16).identity != first
    with torch.no_grad():
        next(network.parameters())[0, 0] += 1e-9
    assert MaskedTokenScorer(network, MASK).identity != first
