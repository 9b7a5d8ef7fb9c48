"""Data of torch and of Hugging Face in headrace, and headrace's data in the trainers of others.

`named`: parts of samples as streams. `samples`: a map-style Dataset as a Table. `workers iterables passes`: what it
takes to iterate a loader again and again, to notice that its processes have died, and to go back. `loaders`: loaders
and iterables as Sources. `huggingface`, `wrap`: whatever it is, as a Table or a Source. `lend`: the other way.

Order is import order.
"""

from .iterables import hugging_kind
from .lend import Lent, as_dataset
from .loaders import LoaderSource, SampleSource
from .wrap import from_dataset, wrap

__all__ = ["Lent", "LoaderSource", "SampleSource", "as_dataset", "from_dataset", "hugging_kind", "wrap"]
