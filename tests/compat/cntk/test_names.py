"""The names of CNTK 2.7 are there: what is not offered says so when it is called, and others hint at native ones."""

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

import headrace.compat.cntk as C
from headrace.compat.hints import warn_once

NAMES = {
    "": """
        Axis CheckpointConfig Constant CrossValidationConfig DataUnit DeviceDescriptor Evaluator Function
        MinibatchSource NDArrayView Parameter TestConfig Trainer UnitType Value Variable adadelta adagrad adam
        all_devices asarray asvalue classification_error combine cpu cross_entropy_with_softmax fsadagrad
        glorot_uniform gpu he_normal input input_variable learning_parameter_schedule
        learning_parameter_schedule_per_sample learning_rate_schedule load_model minibatch_size_schedule
        momentum_as_time_constant_schedule momentum_schedule momentum_schedule_per_sample momentum_sgd nesterov
        normal parameter placeholder plus reduce_sum rmsprop sgd squared_error times training_parameter_schedule
        training_session truncated_normal uniform universal use_default_device xavier constant user_function
    """,
    "io": """
        Base64ImageDeserializer CBFDeserializer CTFDeserializer DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS
        FULL_DATA_SWEEP HTKFeatureDeserializer HTKMLFBinaryDeserializer HTKMLFDeserializer INFINITELY_REPEAT
        ImageDeserializer LatticeDeserializer MinibatchData MinibatchSource MinibatchSourceFromData
        StreamConfiguration StreamDef StreamDefs StreamInformation UserDeserializer UserMinibatchSource
        sequence_to_cntk_text_format
    """,
    "io.transforms": "color crop mean scale",
    "train": "CheckpointConfig CrossValidationConfig DataUnit TestConfig Trainer TrainingSession training_session",
    "train.training_session": """
        CheckpointConfig CrossValidationConfig DataUnit TestConfig TrainingSession minibatch_size_schedule
        training_session
    """,
    "train.trainer": "Trainer",
    "train.distributed": """
        Communicator DistributedLearner WorkerDescriptor block_momentum_distributed_learner
        data_parallel_distributed_learner mpi_communicator
    """,
    "learners": """
        IGNORE Learner UnitType UserLearner adadelta adagrad adam default_unit_gain_value fsadagrad
        default_use_mean_gradient_value learning_parameter_schedule learning_parameter_schedule_per_sample
        learning_rate_schedule momentum_as_time_constant_schedule momentum_schedule momentum_schedule_per_sample
        momentum_sgd nesterov rmsprop set_default_unit_gain_value set_default_use_mean_gradient_value sgd
        training_parameter_schedule universal
    """,
    "distributed": "Communicator block_momentum_distributed_learner data_parallel_distributed_learner",
    "layers": """
        Activation AttentionModel AveragePooling BatchNormalization Convolution Convolution1D Convolution2D
        Convolution3D ConvolutionTranspose ConvolutionTranspose1D ConvolutionTranspose2D ConvolutionTranspose3D
        Delay Dense Dropout Embedding Fold For GRU GlobalAveragePooling GlobalMaxPooling LSTM Label
        LayerNormalization MaxPooling MaxUnpooling ParameterTensor PastValueWindow RNNStep Recurrence
        RecurrenceFrom ResNetBlock Sequence SequenceOver Sequential SequentialClique SparseTensor Stabilizer
        Tensor UnfoldFrom default_options default_options_for tensor
    """,
    "sequence": """
        broadcast_as delay first future_value gather input input_variable is_first is_last last past_value
        reduce_max reduce_sum scatter slice softmax unpack where window
    """,
    "ops": """
        abs acos alias argmax argmin as_block as_composite asin asinh assign associative_multi_arg atan atanh
        batch_normalization cast ceil clip combine constant constant_of_shape convolution convolution_transpose
        cos cosh crop_automatic crop_manual custom_proxy_op depth_to_space dropout element_and element_divide
        element_max element_min element_not element_or element_select element_times element_xor elu equal exp
        expand_dims eye_like flatten floor forward_backward gather greater greater_equal hard_sigmoid hardmax
        image_scaler input input_variable labels_to_graph leaky_relu less less_equal
        local_response_normalization log log_add_exp log_softmax mean mean_variance_normalization minus negate
        not_equal one_hot ones_like optimized_rnnstack output_variable pad param_relu parameter
        per_dim_mean_variance_normalize placeholder plus pooling pow reciprocal reconcile_dynamic_axes reduce_l1
        reduce_l2 reduce_log_sum_exp reduce_max reduce_mean reduce_min reduce_prod reduce_sum reduce_sum_square
        relu reshape roipooling round selu sigmoid sin sinh slice softmax softplus softsign space_to_depth
        splice sqrt square squeeze stop_gradient sum swapaxes tan tanh times times_transpose to_batch
        to_sequence to_sequence_like top_k transpose unpack_batch unpooling zeros_like
    """,
    "ops.functions": "Function",
    "losses": """
        binary_cross_entropy cosine_distance cosine_distance_with_negative_samples cross_entropy_with_softmax
        fmeasure lambda_rank nce_loss squared_error weighted_binary_cross_entropy
    """,
    "metrics": "classification_error edit_distance_error ndcg_at_1",
    "logging": """
        ProgressPrinter TensorBoardProgressWriter TraceLevel TrainingSummaryProgressCallback depth_first_search
        find_all_with_name find_by_name get_node_outputs get_trace_level log_number_of_parameters
        output_function_graph plot set_computation_network_trace_level set_trace_level
    """,
    "device": """
        DeviceDescriptor DeviceKind all_devices cpu get_gpu_properties gpu set_excluded_devices
        try_set_default_device use_default_device
    """,
    "core": "NDArrayView Value asarray asvalue",
}


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_there(module: str) -> None:
    there = importlib.import_module(f"{C.__name__}.{module}".rstrip("."))
    assert [name for name in NAMES[module].split() if not hasattr(there, name)] == []


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
        C.logging.TensorBoardProgressWriter,
        C.elu,
        C.layers.For,
        C.layers.Convolution2D,
        C.sequence.where,
        C.nce_loss,
        C.universal,
    ):
        with pytest.raises(ValueError, match=rf"^cntk\.\S*{function.__name__} is not offered here\. [A-Z].*\.$"):
            function(1)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = C.nothing


@pytest.mark.filterwarnings("default:cntk:DeprecationWarning")
def test_the_native_spelling_is_hinted_at_once() -> None:
    warn_once.cache_clear()
    with pytest.warns(
        DeprecationWarning, match=r"cntk\.sgd: natively torch\.optim\.SGD\. See docs/compatibility\.md"
    ) as told:
        for _ in range(3):
            C.sgd([C.parameter(2)], 0.1)
    assert len(told) == 1
    assert told[0].filename == __file__


@pytest.mark.slow
def test_importing_the_dialect_imports_nothing_heavy() -> None:
    heavy = ("scipy", "pandas", "tensorboard", "matplotlib")
    code = f"import sys, headrace.compat.cntk; print(*[m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
