"""Data of every kind that Python holds: it is trained on, or refused with what to write instead."""

from pathlib import Path

import numpy as np
import pytest
import torch
from kit import late
from kit.late import pandas as pd
from kit.sums import X, Y, make
from torch import Tensor, nn

import headrace as hr

# --- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
@pytest.mark.parametrize("ignored", [None, 1])
def test_labels_may_be_unsigned_numbers(dtype: str, ignored: int | None) -> None:
    def trained(labels: np.ndarray) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        loss = hr.CrossEntropy(ignore_index=ignored)
        trainer = hr.Trainer(model, loss, torch.optim.SGD(model.parameters(), 0.1), batch_size=8)
        trainer.fit((X, labels), epochs=1, progress=False)
        return [*model.parameters()]

    labels = np.arange(40) % 3
    assert all(map(torch.equal, trained(labels.astype(dtype)), trained(labels)))
    with pytest.raises(hr.DataError, match=r"row 2: label 3 is out of range for a model with 3 outputs \(1 such"):
        trained(np.array([0, 1, 3] + [2] * 37, dtype))


def test_values_that_a_mask_hides_are_not_used() -> None:
    hidden = np.zeros((40, 3), bool)
    x = np.ma.masked_array(X.numpy(), hidden)
    assert torch.equal(make().predict(x), make().predict(X))
    x[2, 1] = x[7, 0] = np.ma.masked
    told = "2 masked values, the first in row 2. .*fill them"
    for call in (make().fit, make().step):
        with pytest.raises(hr.DataError, match=rf"stream 'x' has {told}"):
            call((x, Y))
    for broken in (lambda: hr.Ragged.of([x]), lambda: hr.samples([{"x": x[2], "y": 1.0}])):
        with pytest.raises(hr.DataError, match=r"masked values, the first in row"):
            broken()
    with pytest.raises(hr.DataError, match="a sample of 'x' has 1 masked"):
        make().fit(hr.from_dataset([(row, 1.0) for row in x[1:]]), progress=False)
    with pytest.raises(hr.DataError, match=f"'x' has {told}"):
        make(batch_size=None).fit([{"x": x, "y": Y}], progress=False)


def test_sparse_tensors_of_torch_are_sparse_rows_as_those_of_scipy_are() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(3.0))

        def forward(self, x: hr.Sparse) -> Tensor:
            return x.to_dense() @ self.weight

    model = Bag()
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1))
    dense = X * (X > 0)
    for sparse in (dense.to_sparse(), late.sparse.coo_matrix(dense.numpy())):
        assert torch.equal(trainer.predict(sparse), dense @ torch.arange(3.0))
    for odd, kind in (
        (torch.zeros(4, 2, 2).to_sparse(), "sparse_coo"),
        (torch.nested.nested_tensor([torch.zeros(2)] * 4, layout=torch.jagged), "nested"),
    ):
        with pytest.raises(hr.DataError, match=rf"stream 'x' is a .*{kind} tensor.* Make it dense"):
            trainer.predict(odd)


# --- batches --------------------------------------------------------------------------------------------


def test_rows_of_other_lengths_in_the_validation_data_are_said_to_be_sequences() -> None:
    told = r"the val data have y: float32\[2, 4\] where .*hr\.Ragged\.of\(rows\), .*sequences=\('y',\)"
    train, val = ([{"x": X[0], "y": torch.zeros(boxes, 4)}] * 2 for boxes in (1, 2))
    with pytest.raises(hr.DataError, match=told):
        make().fit(hr.from_dataset(train), val=hr.from_dataset(val), progress=False)
    with pytest.raises(hr.DataError, match=r"where the training data have y: sequences.*hr\.Ragged\.of"):
        make().fit({"x": X, "y": hr.Ragged.of([[1.0, 2.0]] * 40)}, val=(X, Y), progress=False)


def test_sequences_where_a_model_takes_a_tensor_have_a_view_that_is_one() -> None:
    rows = {"x": hr.Ragged.of(list(X)), "y": Y}
    with pytest.raises(hr.DataError, match=r"inputs='x\.padded'"):
        make().fit(rows, progress=False)
    make(inputs="x.padded").fit(rows, epochs=1, progress=False)


# --- tables and files -----------------------------------------------------------------------------------


def test_streams_of_one_name_are_told_how_to_get_another(tmp_path: Path) -> None:
    paths = [tmp_path / "x.npy", tmp_path / "y.npy"]
    for path, array in zip(paths, (X, Y), strict=True):
        np.save(path, array.numpy())
    with pytest.raises(hr.DataError, match=r"table 0 and table 1 both have a stream 'x'.*columns=\{'y': 'x'\}"):
        hr.zip(*paths)
    both = hr.zip(paths[0], hr.open_table(paths[1], columns={"y": "x"}))
    make().fit(both, epochs=1, progress=False)
    with pytest.raises(hr.DataError, match=r"stream 'x': expected a tensor .* got a PosixPath.*np\.load"):
        make().fit(dict(zip("xy", paths, strict=True)), progress=False)


def test_what_is_in_memory_is_not_opened_as_a_file() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "kind": ["a", "b"]})
    for given in (X.numpy(), None, {"x": X}):
        with pytest.raises(hr.DataError, match=r"expected a path.* got a \w+\. What is in memory .*hr\.concat"):
            hr.open_table(given)
    for data in (frame, X):
        with pytest.raises(hr.DataError, match="ArrayTable takes columns by name"):
            hr.ArrayTable(data)  # type: ignore[arg-type]
    assert hr.concat(frame).categories == hr.open_table(frame).categories == {"kind": ["a", "b"]}
