import logging

import pytest
from datasets import Dataset
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import precision_score

from embedkit.evaluation.progress import quiet_libraries


def test_a_label_that_is_never_guessed_is_no_remark(recwarn: pytest.WarningsRecorder) -> None:
    with quiet_libraries():
        precision_score([0, 1], [0, 0])
    assert not recwarn.list
    with pytest.warns(UndefinedMetricWarning):
        precision_score([0, 1], [0, 0])


class Interrupted(list[int]):
    """Row numbers during whose hashing a Ctrl-C comes."""

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise KeyboardInterrupt


def test_a_ctrl_c_while_datasets_hashes_row_numbers_is_no_remark(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Dataset.from_dict({"text": ["a", "b", "c"]})
    monkeypatch.setattr("datasets.fingerprint.fingerprint_warnings", {})
    logger = logging.getLogger("datasets.fingerprint")
    logger.addHandler(caplog.handler)
    try:
        with quiet_libraries():
            rows.select(Interrupted([2, 0]))
        assert not caplog.messages
        monkeypatch.setattr("datasets.fingerprint.fingerprint_warnings", {})
        rows.select(Interrupted([2, 0]))
        assert "couldn't be hashed" in caplog.text
    finally:
        logger.removeHandler(caplog.handler)
