import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from embedkit_cli.app import main
from support.tiny_bert import MINILM, real_tokenizer, tiny_bert
from support.tiny_neobert import tiny_masked_lm, write_with_tokenizer
from transformers import BertForMaskedLM

from embedkit.data.text.texts import Texts
from embedkit.errors import UserError
from embedkit.evaluation.perplexity.pseudo_perplexity import evaluate_perplexity

TEXTS = [
    "Fever with chills and a rash that does not itch.",
    "short",
    "def add(a, b): return a + b  # adds two numbers and gives back their sum",
    "The mean of the losses of all tokens of a document, each masked alone.",
    "Nothing is as long as the night before a journey, said the old man to the child.",
]
LONG = " ".join(TEXTS * 3)
LENGTHS = "12,16"
Row = dict[str, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny masked language model with a real tokenizer. Read it only."""
    folder = tmp_path_factory.mktemp("masked") / "tiny-lm"
    torch.manual_seed(0)
    BertForMaskedLM(tiny_bert(dropout=0.0, width=16).config).save_pretrained(folder)
    real_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def measure(model: Path, data: Path, output: Path, **changes: Any) -> list[Row]:
    options: dict[str, Any] = {"lengths": (12, 16), "documents": 3, "dtype": "fp32"}
    evaluate_perplexity([str(model)], data, output, **options | changes)
    return rows(output)


def rows(output: Path) -> list[Row]:
    with (output / "perplexity.csv").open() as file:
        return list(csv.DictReader(file))


def scored(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "documents.jsonl").read_text().splitlines()]


def plain_loss(model: Path, text: str, length: int) -> float:
    """The mean over all tokens but the first and the last, one forward for each."""
    network = BertForMaskedLM.from_pretrained(model).double().eval()
    tokenizer = real_tokenizer()
    words = tokenizer(text, add_special_tokens=False, truncation=False, padding=False)["input_ids"]
    ids = [101, *words[: length - 2], 102]
    losses = []
    for position in range(1, length - 1):
        masked = torch.tensor([[*ids[:position], 103, *ids[position + 1 :]]])
        with torch.no_grad():
            logits = network(input_ids=masked).logits[0, position]
        losses.append(-float(logits.log_softmax(0)[ids[position]]))
    return math.fsum(losses) / len(losses)


@pytest.mark.slow
def test_pseudo_perplexity_is_that_of_a_plain_loop(model: Path, data: Path, tmp_path: Path) -> None:
    short, long = measure(model, data, tmp_path / "out")
    # Document 1 has 14 tokens and no more; document 2 is too short for both lengths.
    for row, length, documents in ((short, 12, (0, 2, 3)), (long, 16, (2, 3, 4))):
        loss = math.fsum(plain_loss(model, TEXTS[each], length) for each in documents) / 3
        assert (row["length"], row["documents"]) == (str(length), "3")
        assert row["positions"] == str(3 * (length - 2))
        assert float(row["loss"]) == pytest.approx(loss, rel=1e-5)
        assert float(row["pseudo_perplexity"]) == pytest.approx(math.exp(loss), rel=1e-4)
        assert float(row["sampling_stderr"]) == 0
        assert row["model"] == "tiny-lm"


@pytest.mark.slow
def test_documents_are_the_first_that_are_long_enough(
    model: Path, data: Path, tmp_path: Path
) -> None:
    measure(model, data, tmp_path / "out", documents=2)
    found = [(each["length"], each["document"]) for each in scored(tmp_path / "out")]
    assert found == [(12, 1), (12, 3), (16, 3), (16, 4)]
    assert measure(model, data, tmp_path / "all", documents=99)[0]["documents"] == "4"


def test_the_mask_and_other_special_tokens_are_never_guessed(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text(json.dumps({"text": "a [MASK] b [SEP] c \u1234 d e f g h i j k"}) + "\n")
    (row,) = measure(model, data, tmp_path / "out", lengths=(10,))
    # [CLS] a [MASK] b [SEP] c [UNK] d e [SEP]
    assert row["positions"] == "5"


@pytest.mark.slow
def test_a_sample_of_positions_is_a_function_of_seed_and_document(
    model: Path, data: Path, tmp_path: Path
) -> None:
    def losses(name: str, seed: int) -> list[float]:
        measure(model, data, tmp_path / name, positions=4, seed=seed, lengths=(12,))
        return [each["loss"] for each in scored(tmp_path / name)]

    first = losses("first", 0)
    assert losses("again", 0) == first
    assert not set(losses("other", 1)) & set(first)


@pytest.mark.slow
def test_samples_of_positions_are_right_on_average_and_err_as_they_say(
    model: Path, tmp_path: Path
) -> None:
    one, copies = tmp_path / "one.jsonl", tmp_path / "copies.jsonl"
    one.write_text(json.dumps({"text": TEXTS[0]}) + "\n")
    copies.write_text(one.read_text() * 400)
    (exact,) = measure(model, one, tmp_path / "exact", lengths=(12,))
    # Every row of one text draws positions of its own.
    (drawn,) = measure(model, copies, tmp_path / "drawn", lengths=(12,), documents=400, positions=3)
    assert (drawn["documents"], drawn["positions"]) == ("400", "1200")
    error = float(drawn["sampling_stderr"])
    assert 0 < abs(float(drawn["loss"]) - float(exact["loss"])) < 3 * error
    assert float(drawn["stderr"]) == pytest.approx(error, rel=0.15)


@pytest.mark.slow
def test_what_is_scored_is_not_scored_again(model: Path, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    measure(model, data, output, lengths=(12,), documents=2)
    lines = scored(output)
    lines[0]["loss"] = 7.0
    (output / "documents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    short, _ = measure(model, data, output)
    assert scored(output)[:2] == lines
    assert len(scored(output)) == 6
    assert float(short["loss"]) > (7.0 + lines[1]["loss"]) / 3


@pytest.mark.slow
def test_a_model_with_other_weights_is_scored_anew(model: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "tiny-lm")
    network = BertForMaskedLM.from_pretrained(tmp_path / "tiny-lm")
    before = measure(tmp_path / "tiny-lm", data, tmp_path / "out")
    with torch.no_grad():
        network.cls.predictions.bias.add_(torch.arange(30522) * 1e-4)
    network.save_pretrained(tmp_path / "tiny-lm")
    after = measure(tmp_path / "tiny-lm", data, tmp_path / "out")
    assert before[0]["loss"] != after[0]["loss"]
    assert len(scored(tmp_path / "out")) == 12


@pytest.mark.slow
def test_several_models_are_rows_of_one_table_and_lines_of_one_plot(
    model: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "other")
    models = [str(model), str(tmp_path / "other")]
    points = evaluate_perplexity(
        models, data, tmp_path / "out", lengths=(12,), documents=2, dtype="fp32"
    )
    assert [point.model for point in points] == ["tiny-lm", "other"]
    assert points[0].loss == points[1].loss
    assert (tmp_path / "out" / "perplexity.png").stat().st_size > 5000
    assert ">other<" in (tmp_path / "out" / "perplexity.svg").read_text()


@pytest.mark.usefixtures("native_bf16")
def test_models_of_one_name_are_told_apart_by_what_was_typed(
    model: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "tiny-lm")
    models = [str(model), str(tmp_path / "tiny-lm")]
    points = evaluate_perplexity(models, data, tmp_path / "out", lengths=[12], documents=1)
    assert [point.model for point in points] == models


@pytest.fixture
def command(model: Path, data: Path, tmp_path: Path) -> list[str]:
    return [
        *("eval-perplexity", "--model", str(model), "--data", str(data), "--dtype", "fp32"),
        *("--lengths", LENGTHS, "--output", str(tmp_path / "out")),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--lengths", "12,129"],
            "--lengths: .*has a table of 128 positions; leave out the lengths beyond 128",
        ),
        (
            ["--lengths", "100"],
            r"--lengths: no document of .* has 100 tokens \(the longest has 2\d\); leave that",
        ),
        (["--lengths", "2"], "--lengths: give numbers of tokens from 3 on, .* \\(got 2\\)"),
        (["--lengths", "12,x"], "--lengths: write numbers, e.g. 512,1024"),
        (["--positions", "some"], "--positions: write all, or a number"),
        (["--positions", "1"], "--positions: write all, or a number from 2 on"),
        (["--documents", "0"], "--documents: Input should be greater than 0 .got 0"),
        (["--dtype", "int8"], "--dtype: 'int8' is not one of 'auto', 'bf16', 'fp16', 'fp32'"),
        (["--data", "absent.jsonl"], "absent.jsonl: no such file"),
        (["--data", "absent"], "absent: not a name under data_manifests/"),
        (["--model", MINILM], r"its file lacks \d+ weights \(cls\.predictions"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    command: list[str],
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["embedkit", *command, *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert pytest.raises(UserError, match=message).matches(UserError(line)), line


def test_a_row_without_text_is_named(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "one"}\n{"title": "two"}\n')
    with pytest.raises(UserError, match=r"texts\.jsonl, line 2: "):
        measure(model, data, tmp_path / "out")


def write_manifest(data: Path, held_out: str = "") -> Path:
    path = data.with_suffix(".toml")
    path.write_text(
        f'license = "none"\n{held_out}[columns]\ntext = "text"\n'
        f'[source]\nkind = "files"\n[[source.files]]\npath = "{data}"\n'
    )
    return path


@pytest.mark.slow
def test_of_a_manifest_what_is_held_out_is_read(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": f"{n} {LONG}"}) + "\n" for n in range(40)))
    (row,) = measure(model, write_manifest(data), tmp_path / "all", lengths=(12,), documents=99)
    assert row["documents"] == "40"
    manifest = write_manifest(data, "held_out = { share = 0.25 }\n")
    (row,) = measure(model, manifest, tmp_path / "some", lengths=(12,), documents=99)
    texts = Texts.from_manifest(manifest)
    expected = [
        number for number, document in enumerate(texts.documents(), start=1) if document.held_out
    ]
    assert 0 < len(expected) < 40
    assert [each["document"] for each in scored(tmp_path / "some")] == expected


def test_rope_reads_on_where_training_ended(tmp_path: Path) -> None:
    folder = write_with_tokenizer(tiny_masked_lm(max_position_embeddings=16), tmp_path / "neobert")
    data = tmp_path / "texts.jsonl"
    data.write_text(json.dumps({"text": LONG}) + "\n")
    short, long = measure(folder, data, tmp_path / "out", lengths=(16, 64))
    assert (short["positions"], long["positions"]) == ("14", "62")
    assert short["loss"] != long["loss"]


def test_the_command_prints_the_table(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["embedkit", *command, "--positions", "3"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out == (tmp_path / "out" / "perplexity.csv").read_text()


@pytest.mark.slow
def test_a_killed_measurement_goes_on_where_it_was(
    model: Path, tmp_path: Path, command: list[str]
) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": f"{n} {LONG}"}) + "\n" for n in range(40)))
    plan = {"lengths": (64, 128), "documents": 40}
    lines = tmp_path / "out" / "documents.jsonl"
    words = [*command, "--lengths", "64,128", "--documents", "40"]
    run = [sys.executable, "-m", "embedkit_cli", *words]
    process = subprocess.Popen(run, env=os.environ | {"OMP_NUM_THREADS": "1"})
    for _ in waiting():
        if lines.exists() and lines.read_text().count("\n") >= 3:
            break
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = len(lines.read_text().splitlines())
    assert 3 <= kept < 80
    resumed = measure(model, data, tmp_path / "out", **plan)
    assert resumed == measure(model, data, tmp_path / "unbroken", **plan)
    whole = [line for line in lines.read_text().splitlines() if line.endswith("}")]
    assert Counter(json.loads(line)["key"] for line in whole).most_common(1)[0][1] == 1


def waiting() -> Iterator[None]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)
    raise AssertionError("nothing was scored in two minutes")
