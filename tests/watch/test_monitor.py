"""Which numbers can be watched, what is said of those that cannot, and which side of a number is better."""

import pytest

import headrace as hr
from headrace.watch.monitor import Expected, check_watched, mode_of, number_of, side_of

SIDES = {
    "min": [
        "loss",
        "val/loss",
        "train/loss/l2",
        "val/loss/accuracy",
        "val/error",
        "val/error:macro",
        "mae",
        "test/mse",
    ],
    "max": ["val/accuracy", "f1:weighted", "val/f1", "val/recall", "val/precision:none", "auroc", "r2", "val/top-3"],
    "": ["f1_gap", "val/accuracy_gap", "precision_loss", "error_free_rate", "val/losses", "top-", "bleu", "val_loss"],
}
KEYS = ["train/loss", "train/loss/mse", "train/mae", "val/loss", "val/loss/mse", "val/mae"]


def expected(logged: bool = False) -> Expected:
    return Expected.of({"train": ["mse"], "val": ["mse"]}, ["mae"], logged)


@pytest.mark.parametrize(("side", "key"), [(side, key) for side, keys in SIDES.items() for key in keys])
def test_a_name_tells_its_side_as_whole_words(side: str, key: str) -> None:
    assert side_of(key) == side


def test_what_the_user_says_comes_before_the_metric_and_the_metric_before_the_name() -> None:
    assert mode_of("val/f1") == "max"
    assert mode_of("val/f1", side="min") == "min"
    assert mode_of("val/f1", "max", side="min") == "max"
    with pytest.raises(
        hr.ConfigError, match=r"'val/gap' should be small .* mode='max'\. There are: val/loss, val/f1\."
    ):
        mode_of("val/gap", there=["val/loss", "val/f1"])
    with pytest.raises(hr.ConfigError, match=r"mode='max'\. Did you mean 'val/accuracy'\? There are: train/loss, "):
        mode_of("val/acc", there=["train/loss", "val/loss", "val/accuracy"])
    with pytest.raises(hr.ConfigError, match=r"mode='max'\. There are: val/loss, val/gap\."):
        mode_of("val/gap", there=["val/loss", "val/gap"])
    with pytest.raises(hr.ConfigError, match="mode= is 'min', 'max' or 'auto', got 'best'"):
        mode_of("val/loss", "best")


def test_what_is_measured_is_known_from_terms_and_metrics() -> None:
    assert list(expected().keys) == KEYS
    for key in KEYS:
        check_watched("Who", key, expected(), own=False)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("val/rmae", r"measured\. Did you mean 'val/mae'\? There are: train/loss, .*val/mae\."),
        ("val/ma", r"measured\. Did you mean 'val/mae'\? There are"),
        ("train/los", r"measured\. Did you mean 'train/loss'\?"),
        ("val/accuracy", r"measured\. There are: train/loss"),
        ("val_mae", r"measured\. Did you mean 'val/mae'\?"),
        ("train.loss", r"measured\. Did you mean 'train/loss'\?"),
        ("mae", r"measured\. Did you mean 'train/mae' or 'val/mae'\?"),
        ("test/mae", "the test data are scored once"),
        ("test_loss", "the test data are scored once"),
    ],
)
def test_what_is_not_measured_is_told_with_the_nearest_that_is(key: str, said: str) -> None:
    with pytest.raises(hr.ConfigError, match=f"Who looks at '{key}'.*{said}"):
        check_watched("Who", key, expected())


@pytest.mark.parametrize("key", ["bleu", "mine/loss", "val_bleu", "test_set_2"])
def test_what_the_driver_of_a_loop_may_log_passes(key: str) -> None:
    check_watched("Who", key, expected())
    with pytest.raises(hr.ConfigError, match="not measured"):
        check_watched("Who", key, expected(), own=False)


@pytest.mark.parametrize("key", ["bleu", "val/bleu", "val_loss", "loss", "test_loss"])
def test_what_a_callback_may_log_passes(key: str) -> None:
    check_watched("Who", key, expected(logged=True))


def test_a_number_of_data_that_are_not_there_is_refused_whoever_may_log() -> None:
    without = Expected.of({"train": None}, [], True)
    with pytest.raises(hr.ConfigError, match=r"there are no val data. Pass them, or look at a number of train"):
        check_watched("Who", "val/loss", without)
    check_watched("Who", "train/loss/anything", without, own=False)


def test_a_report_gives_the_number_or_nothing_or_says_that_it_should_have_been_there() -> None:
    assert number_of("Who", "val/loss", {"step": 1, "val/loss": 2}) == 2.0
    for row in ({"step": 1, "train/loss": 1.0}, {"step": 1, "val/odd": 1.0}):
        assert number_of("Who", "val/mae", row) is None
        assert number_of("Who", "bleu", row) is None
    with pytest.raises(hr.ConfigError, match=r"'val/mae', which is not measured. There are: val/loss, val/f1"):
        number_of("Who", "val/mae", {"step": 1, "val/loss": 1.0, "val/f1": 1.0})
    with pytest.raises(hr.ConfigError, match=r"'val/mae', which is a dict. Look at a number"):
        number_of("Who", "val/mae", {"val/mae": {"a": 1.0}})
