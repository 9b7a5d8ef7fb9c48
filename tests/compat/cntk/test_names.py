"""The names of CNTK 2.7 are there: what is not offered says so when it is called."""

import inspect
from typing import Any

import pytest

import headrace.compat.cntk as C

NAMES = {
    "": "Axis CheckpointConfig DataUnit Trainer adam combine input_variable parameter plus sequence training_session",
    "io": "CTFDeserializer INFINITELY_REPEAT MinibatchSource StreamDefs UserMinibatchSource",
    "train.training_session": "CrossValidationConfig TestConfig minibatch_size_schedule training_session",
    "train.distributed": "Communicator block_momentum_distributed_learner data_parallel_distributed_learner",
    "learners": "IGNORE UnitType UserLearner rmsprop set_default_use_mean_gradient_value training_parameter_schedule",
    "distributed": "Communicator block_momentum_distributed_learner data_parallel_distributed_learner",
    "layers": "Dense Embedding Fold GRU LSTM RNNStep Recurrence RecurrenceFrom Sequential default_options",
    "sequence": "first future_value input_variable last past_value reduce_sum",
    "ops": "abs argmax as_block equal greater_equal relu reshape slice softmax sqrt times",
    "ops.functions": "Function",
    "losses": "binary_cross_entropy cross_entropy_with_softmax squared_error",
    "metrics": "classification_error",
    "logging": "ProgressPrinter TraceLevel",
    "device": "DeviceDescriptor DeviceKind all_devices cpu gpu use_default_device",
    "core": "Value",
    "cntk_py": "MinibatchSourceConfig set_fixed_random_seed",
}


def starred(module: str) -> dict[str, Any]:
    """What "import *" gives of a module."""
    found: dict[str, Any] = {}
    exec(f"from {C.__name__}{f'.{module}' if module else ''} import *", found)
    return found


@pytest.mark.parametrize("module", NAMES)
def test_a_star_imports_every_name(module: str) -> None:
    found = starred(module)
    assert [name for name in NAMES[module].split() if "Not offered" in (found[name].__doc__ or "")] == []


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (C.sgd, "parameters lr l1_regularization_weight l2_regularization_weight gaussian_noise_injection_std_dev "
         "gradient_clipping_threshold_per_sample gradient_clipping_with_truncation use_mean_gradient minibatch_size "
         "epoch_size"),
        (C.training_session, "trainer mb_source mb_size model_inputs_to_streams progress_frequency max_samples "
         "checkpoint_config cv_config test_config"),
        (C.CheckpointConfig, "filename frequency restore preserve_all"),
        (C.CrossValidationConfig, "minibatch_source frequency minibatch_size callback max_samples "
         "model_inputs_to_streams criterion source mb_size"),
        (C.TestConfig, "minibatch_source minibatch_size model_inputs_to_streams criterion source mb_size"),
        (C.logging.ProgressPrinter, "freq first tag log_to_file rank gen_heartbeat num_epochs test_freq test_first "
         "metric_is_pct distributed_freq distributed_first"),
        (C.io.StreamInformation, "name stream_id storage_format dtype shape defines_mb_size"),
        (C.io.MinibatchData, "value num_sequences num_samples sweep_end"),
        (C.Trainer, "model criterion parameter_learners progress_writers"),
        (C.Trainer.train_minibatch, "self arguments outputs device is_sweep_end"),
    ],
)  # fmt: skip
def test_a_signature_is_that_of_2_7(function: Any, parameters: str) -> None:
    assert list(inspect.signature(function).parameters) == parameters.split()


def test_what_is_not_offered_says_so_when_it_is_called_and_not_before() -> None:
    for function in (
        C.load_model,
        C.ops.roipooling,
        C.convolution,
        C.splice,
        C.logging.TensorBoardProgressWriter,  # type: ignore[attr-defined]
        C.elu,
        C.layers.For,
        C.layers.Convolution2D,
        C.sequence.where,
        C.nce_loss,
        C.universal,
    ):
        with pytest.raises(ValueError, match=rf"^cntk\.\S*{function.__name__} is not offered here\. [A-Z].*\.$"):
            function(1)
    with pytest.raises(ValueError, match=r"cntk\.layers\.typing\.Tensor is not offered"):
        C.layers.typing.Tensor[2]
    with pytest.raises(ValueError, match=r"cntk\.ops\.functions\.UserFunction is not offered"):

        class Own(C.ops.functions.UserFunction):  # type: ignore[misc,name-defined]
            pass

    with pytest.raises(AttributeError, match="no attribute '__nothing__'"):
        _ = C.__nothing__
