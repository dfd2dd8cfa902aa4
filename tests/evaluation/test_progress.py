import pytest
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import precision_score

from embedkit.evaluation.progress import quiet_libraries


def test_a_label_that_is_never_guessed_is_no_remark(recwarn: pytest.WarningsRecorder) -> None:
    with quiet_libraries():
        precision_score([0, 1], [0, 0])
    assert not recwarn.list
    with pytest.warns(UndefinedMetricWarning):
        precision_score([0, 1], [0, 0])
