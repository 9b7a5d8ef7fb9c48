"""What to write instead: a hint for each name once, and a sentence for each name that is not offered."""

from collections.abc import Callable
from typing import Any

from ...errors import ConfigError
from ..hints import warn_once

PAGE = "docs/compatibility.md"
NOT_OFFERED: dict[str, str] = {
    "": "load_model user_function debugging",
    "ops": """
        assign associative_multi_arg batch_normalization cast constant_of_shape convolution convolution_transpose
        crop_automatic crop_manual crosstalk custom_proxy_op depth_to_space element_xor eye_like floor_division
        forward_backward forward_declaration from_x2tensor gather group_convolution image_scaler input_space_to_depth
        labels_to_graph lattice_sequence_with_softmax local_response_normalization logical_and logical_or logical_xor
        mat_mul mean_variance_normalization mod ndarray_view_op one_hot_op optimized_rnnstack output_variable pad
        per_dim_mean_variance_normalize pooling proxy_operand_op random_sample random_sample_inclusion_frequency
        reconcile_dynamic_axes roipooling sequence_unpack space_to_depth splice straight_through_impl swapaxes to_batch
        to_sequence to_sequence_like top_k unpack_batch unpooling user_function
    """,
    "layers": """
        AttentionModel AveragePooling BatchNormalization Convolution Convolution1D Convolution2D Convolution3D
        ConvolutionTranspose ConvolutionTranspose1D ConvolutionTranspose2D ConvolutionTranspose3D GlobalAveragePooling
        GlobalMaxPooling MaxPooling MaxUnpooling PastValueWindow ResNetBlock SequentialClique UnfoldFrom
    """,
    "sequence": "gather reduce_concat_pairs scatter unpack where window",
    "losses": "cosine_distance_with_negative_samples edit_distance_error fmeasure lambda_rank nce_loss",
    "metrics": "edit_distance_error ndcg_at_1",
    "learners": "universal",
    "io": """
        Base64ImageDeserializer CBFDeserializer HTKFeatureDeserializer HTKMLFBinaryDeserializer HTKMLFDeserializer
        ImageDeserializer LatticeDeserializer
    """,
    "io.transforms": "color crop mean scale",
    "cntk_py": "MinibatchSourceConfig to_dictionary",
    "logging": "output_function_graph plot set_computation_network_trace_level",
}
"""The names of CNTK 2.7 that are not offered, by module. Each is there, and says so when it is called."""
_INSTEAD = {
    "load_model": "Make the model again and restore its parameters: Trainer.restore_from_checkpoint(name), or "
    "z.restore(name).",
    "debugging": "Use Python's debugger: graphs are computed step by step by torch.",
    "fmeasure": "Natively metrics=['f1'].",
    "universal": "Derive from UserLearner, or natively from torch.optim.Optimizer.",
    "CBFDeserializer": "Keep the text file: CTFDeserializer caches what it has parsed.",
    "MinibatchSourceConfig": "Make the MinibatchSource itself.",
    "to_dictionary": "A source is made of its deserializers at once.",
    "io": "Natively read images with headrace.vision.ImageFiles, and speech as a Table of your own.",
    "io.transforms": "Natively change images with headrace.vision.Augment.",
    "logging": "Natively the report of a run has a summary of the model; use torch.profiler for traces.",
}
_ELSE = "Write it with the operations that are there, or as a torch module of a headrace Trainer."


def hint(name: str, native: str) -> None:
    """Warns once that a name of CNTK's has a native spelling."""
    warn_once(f"cntk.{name}: natively {native}. See {PAGE}.")


def lookup(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: a name that is not offered is a function that says so when it is called."""
    names = NOT_OFFERED[module].split()
    prefix = f"cntk.{module}." if module else "cntk."

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module 'cntk{f'.{module}' if module else ''}' has no attribute {name!r}; see {PAGE}")
        instead = _INSTEAD.get(name) or _INSTEAD.get(module, _ELSE)

        def refuse(*_: Any, **__: Any) -> Any:
            raise ConfigError(f"{prefix}{name} is not offered here. {instead}")

        refuse.__name__ = refuse.__qualname__ = name
        refuse.__doc__ = f"Not offered. {instead}"
        return refuse

    return find
