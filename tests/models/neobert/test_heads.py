from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small_neobert import batch, padded, small_config, small_lm
from torch import Tensor

from embedkit.models.neobert import (
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
)

INPUTS = padded()
REAL = INPUTS["attention_mask"].bool()
# Of the 19 tokens of the sequences, in their order.
LABELS = torch.tensor([-100] * 5 + [3, 90] + [-100] * 7 + [17] + [-100] * 4)


def padded_labels(labels: Tensor) -> Tensor:
    return torch.full(REAL.shape, -100).masked_scatter(REAL, labels)


def classifier(kind: Any, **changes: Any) -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return kind(small_config(**changes)).double().eval()


def test_logits_are_the_same_padded_and_unpadded() -> None:
    model = small_lm()
    logits = model.decoder(model.model.encode_tokens(batch()))
    assert logits.shape == (19, 97)
    torch.testing.assert_close(model(**INPUTS).logits[REAL], logits)


def test_the_loss_is_the_mean_over_labelled_tokens() -> None:
    model = small_lm()
    given = model(**INPUTS, labels=padded_labels(LABELS))
    picked = given.logits[REAL][[5, 6, 14]].log_softmax(-1)
    expected = -(picked[0, 3] + picked[1, 90] + picked[2, 17]) / 3
    torch.testing.assert_close(given.loss, expected)


def test_the_loss_is_divided_by_the_labels_of_the_whole_step_if_told() -> None:
    model = small_lm()
    labels = padded_labels(LABELS)
    alone = model(**INPUTS, labels=labels).loss
    shared = model(**INPUTS, labels=labels, num_items_in_batch=torch.tensor(12)).loss
    torch.testing.assert_close(shared, alone * 3 / 12)


def test_training_decodes_labelled_tokens_alone_with_the_gradients_of_all() -> None:
    sparse, full = small_lm().train(), small_lm().train()
    decoded = []
    sparse.decoder.register_forward_hook(lambda *call: decoded.append(call[2].shape[0]))
    given = sparse(**INPUTS, labels=padded_labels(LABELS))
    assert given.logits is None
    assert decoded == [3]
    given.loss.backward()
    F.cross_entropy(full(**INPUTS).logits[REAL], LABELS).backward()
    for ours, theirs in zip(sparse.parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
        assert ours.grad is not None
        assert ours.grad.any()


def test_a_batch_without_labelled_tokens_has_no_loss_and_no_gradient() -> None:
    model = small_lm()
    loss = model(**INPUTS, labels=torch.full(REAL.shape, -100)).loss
    assert loss == 0
    loss.backward()
    assert not any(each.grad is not None and each.grad.any() for each in model.parameters())


def test_the_decoder_is_not_the_embedding() -> None:
    model = small_lm()
    assert model.get_output_embeddings() is model.decoder
    assert model.decoder.weight.data_ptr() != model.model.encoder.weight.data_ptr()
    assert not model.decoder.bias.any()
    assert model.get_input_embeddings() is model.model.encoder


def test_the_vocabulary_grows_at_both_ends() -> None:
    model = small_lm()
    before = model(**INPUTS).logits
    model.resize_token_embeddings(101)
    after = model(**INPUTS).logits
    assert after.shape[-1] == model.config.vocab_size == 101
    torch.testing.assert_close(after[..., :97], before)


def test_a_sequence_is_classified_by_its_first_token_through_two_layers() -> None:
    model = classifier(NeoBERTForSequenceClassification, num_labels=3)
    first = model.model.encode_tokens(batch())[batch().offsets[:-1]]
    hidden = torch.tanh(first @ model.dense.weight.T + model.dense.bias)
    expected = hidden @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(model(**INPUTS).logits, expected)
    turned = model(**{name: rows.flip(1) for name, rows in INPUTS.items()}).logits
    assert turned.shape == expected.shape


def test_padding_in_front_is_not_the_first_token() -> None:
    model = classifier(NeoBERTForSequenceClassification)
    left = torch.tensor([[0, 0, 5, 6, 7], [9, 10, 11, 12, 13]])
    expected = model(**padded([[5, 6, 7], [9, 10, 11, 12, 13]])).logits
    torch.testing.assert_close(model(left, (left > 0).long()).logits, expected)


@pytest.mark.parametrize(
    ("num_labels", "labels", "problem"),
    [
        (1, [0.0, 1.5, -1.0, 2.0, 0.5, 3.0], "regression"),
        (3, [0, 2, 1, 1, 0, 2], "single_label_classification"),
        (2, [[0.0, 1.0]] * 6, "multi_label_classification"),
    ],
)
def test_labels_of_sequences_give_the_loss_of_their_problem(
    num_labels: int, labels: list[Any], problem: str
) -> None:
    model = classifier(NeoBERTForSequenceClassification, num_labels=num_labels)
    targets = torch.tensor(labels, dtype=torch.int64 if num_labels == 3 else torch.float64)
    given = model(**INPUTS, labels=targets)
    losses: dict[str, Any] = {
        "regression": lambda: F.mse_loss(given.logits[:, 0], targets),
        "single_label_classification": lambda: F.cross_entropy(given.logits, targets),
        "multi_label_classification": lambda: F.binary_cross_entropy_with_logits(
            given.logits, targets
        ),
    }
    torch.testing.assert_close(given.loss, losses[problem]())
    assert model.config.problem_type == problem
    given.loss.backward()
    assert all(each.grad is not None for each in model.parameters())


def test_tokens_are_classified_one_by_one() -> None:
    model = classifier(NeoBERTForTokenClassification, num_labels=5)
    labels = torch.where(LABELS < 0, LABELS, LABELS % 5)
    given = model(**INPUTS, labels=padded_labels(labels))
    expected = model.model.encode_tokens(batch()) @ model.classifier.weight.T
    torch.testing.assert_close(given.logits[REAL], expected)
    torch.testing.assert_close(given.loss, F.cross_entropy(expected, labels))


def test_a_classifier_starts_normal_on_top_of_a_uniform_encoder() -> None:
    model = classifier(
        NeoBERTForSequenceClassification, classifier_init_range=0.02, decoder_init_range=0.5
    )
    assert model.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.dense.weight.abs().max() > 0.04
    assert not model.dense.bias.any()
    largest = model.model.transformer_encoder[0].qkv.weight.abs().max().item()
    assert largest == pytest.approx(0.5, rel=0.01)


def test_dropout_is_the_heads_alone() -> None:
    model = classifier(NeoBERTForSequenceClassification, classifier_dropout=0.5).train()
    dropped = []
    model.dropout.register_forward_hook(lambda *call: dropped.append(call[2]))
    assert not torch.equal(model(**INPUTS).logits, model(**INPUTS).logits)
    assert [states.shape for states in dropped] == [(6, 32)] * 4
    states = [model.model.encode_tokens(batch()) for _ in range(2)]
    assert torch.equal(states[0], states[1])


def test_hidden_states_reach_through_a_head() -> None:
    given = small_lm()(**INPUTS, output_hidden_states=True)
    assert [state.shape for state in given.hidden_states] == [(6, 7, 32)] * 3
