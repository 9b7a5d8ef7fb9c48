"""What to write instead: a hint for each name once, and a sentence for each name that is not offered."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from ...errors import ConfigError
from ..hints import warn_once

PAGE = "docs/compatibility.md"
NOT_OFFERED: dict[str, str] = {
    "train": "",
    "": "debugging load_model user_function",
    "ops": """
        acos alias argmin as_composite asin asinh assign associative_multi_arg atan atanh batch_normalization
        cast ceil clip constant_of_shape convolution convolution_transpose cosh crop_automatic crop_manual
        crosstalk custom_proxy_op depth_to_space element_and element_max element_min element_not element_or
        element_select element_xor elu erf expand_dims eye_like flatten floor floor_division forward_backward
        forward_declaration from_x2tensor gather group_convolution hard_sigmoid hardmax image_scaler
        input_space_to_depth labels_to_graph lattice_sequence_with_softmax leaky_relu
        local_response_normalization log_add_exp log_softmax logical_and logical_or logical_xor mat_mul mean
        mean_variance_normalization mod ndarray_view_op one_hot one_hot_op ones_like optimized_rnnstack
        output_variable pad param_relu per_dim_mean_variance_normalize pooling proxy_operand_op random_sample
        random_sample_inclusion_frequency reciprocal reconcile_dynamic_axes reduce_l1 reduce_l2 reduce_min
        reduce_prod reduce_sum_square roipooling round selu sequence_unpack sinh softsign space_to_depth splice
        squeeze straight_through_impl sum swapaxes tan times_transpose to_batch to_sequence to_sequence_like
        top_k unpack_batch unpooling user_function zeros_like
    """,
    "layers": """
        Activation AttentionModel AveragePooling BatchNormalization BlockFunction Constant Convolution Convolution1D
        Convolution2D Convolution3D ConvolutionTranspose ConvolutionTranspose1D ConvolutionTranspose2D
        ConvolutionTranspose3D Delay For GlobalAveragePooling GlobalMaxPooling Input Label LayerNormalization
        MaxPooling MaxUnpooling Parameter PastValueWindow Placeholder ResNetBlock SequentialClique Stabilizer UnfoldFrom
        default_options_for
    """,
    "sequence": "delay gather is_first is_last reduce_concat_pairs scatter slice softmax unpack where window",
    "losses": """
        cosine_distance cosine_distance_with_negative_samples edit_distance_error fmeasure lambda_rank nce_loss
        weighted_binary_cross_entropy
    """,
    "metrics": "edit_distance_error ndcg_at_1",
    "learners": "universal",
    "io": """
        Base64ImageDeserializer CBFDeserializer HTKFeatureDeserializer HTKMLFBinaryDeserializer
        HTKMLFDeserializer ImageDeserializer LatticeDeserializer
    """,
    "io.transforms": "color crop mean scale",
    "cntk_py": "",
    "logging": """
        get_trace_level set_trace_level TensorBoardProgressWriter
        TrainingSummaryProgressCallback depth_first_search find_all_with_name
        find_by_name get_node_outputs output_function_graph plot set_computation_network_trace_level
    """,
    "device": "get_gpu_properties set_excluded_devices try_set_default_device",
    "core": "asvalue",
    "layers.typing": "",
    "distributed": "",
    "default_options": "default_options_for",
}
"""The names of CNTK 2.7 that are not offered, by module. Each is there, and says so when it is called."""
_INSTEAD = {
    "load_model": "Make the model again and restore its parameters: Trainer.restore_from_checkpoint(name), or "
    "z.restore(name).",
    "debugging": "Use Python's debugger: graphs are computed step by step by torch.",
    "fmeasure": "Natively metrics=['f1'].",
    "universal": "Derive from UserLearner, or natively from torch.optim.Optimizer.",
    "CBFDeserializer": "Keep the text file: CTFDeserializer caches what it has parsed.",
    "io": "Natively read images with headrace.vision.ImageFiles, and speech as a Table of your own.",
    "io.transforms": "Natively change images with headrace.vision.Augment.",
    "TensorBoardProgressWriter": "Natively fit(callbacks=[hr.TensorBoard()]).",
    "sequence": "Write it with past_value, future_value and Recurrence.",
    "device": "Use cpu(), gpu(0) and use_default_device.",
    "logging": "Natively the report of a run has a summary of the model; use torch.profiler for traces.",
}
_ELSE = "Write it with the operations that are there, or as a torch module of a headrace Trainer."


def hint(name: str, native: str) -> None:
    """Warns once that a name of CNTK's has a native spelling."""
    warn_once(f"cntk.{name}: natively {native}. See {PAGE}.")


def lookup(module: str, *places: ModuleType | SimpleNamespace) -> Callable[[str], Any]:
    """The `__getattr__` of a module: what stands in other modules, and functions that say that they are not offered."""
    names = NOT_OFFERED[module].split()
    prefix = f"cntk.{module}." if module else "cntk."

    def find(name: str) -> Any:
        for place in () if name.startswith("_") else places:
            if hasattr(place, name):
                return getattr(place, name)
        if name not in names:
            raise AttributeError(f"module 'cntk{f'.{module}' if module else ''}' has no attribute {name!r}; see {PAGE}")
        instead = _INSTEAD.get(name) or _INSTEAD.get(module, _ELSE)

        def refuse(*_: Any, **__: Any) -> Any:
            raise ConfigError(f"{prefix}{name} is not offered here. {instead}")

        refuse.__name__ = refuse.__qualname__ = name
        refuse.__doc__ = f"Not offered. {instead}"
        return refuse

    return find


def add_module(name: str, *places: ModuleType | SimpleNamespace) -> None:
    """Makes a module of CNTK's whose names stand in other modules here."""
    package, _, last = name.rpartition(".")
    own = __package__ + "." + package if package else __package__
    module = sys.modules[f"{own}.{last}"] = ModuleType(f"{own}.{last}", f"The names of cntk.{name}.")
    setattr(module, "__getattr__", lookup(name, *places))  # noqa: B010
    setattr(sys.modules[own], last, module)
