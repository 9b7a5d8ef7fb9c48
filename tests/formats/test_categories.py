"""Strings have the numbers that they had in the training, wherever a model is used, or the data are refused."""

from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from kit.late import pandas as pd
from torch import Tensor, nn

import headrace as hr

KINDS = ["ant", "bee", "zoo"]


@cache
def train() -> Any:
    return pd.DataFrame({"kind": KINDS * 4, "y": [0.0, 1.0, 2.0] * 4})


class Look(nn.Module):
    """Looks a number up for each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.zeros(3, 1, dtype=torch.float64), freeze=False)

    def forward(self, kind: Tensor) -> Any:
        return self.table(kind)[:, 0]


def make() -> hr.Trainer:
    model = Look()
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 1.0), batch_size=12, inputs="kind")


def fitted(data: Any = None, run: Path | None = None, **options: Any) -> hr.Trainer:
    trainer = make()
    trainer.fit(train() if data is None else data, epochs=1, progress=False, run=hr.Run(run, logs=False), **options)
    return trainer


def loaded(run: Path, **options: Any) -> hr.Trainer:
    """What a new process has: a trainer that has not trained, and the weights of the run."""
    trainer = make()
    hr.load_weights(trainer.model, run, which="last", **options)
    return trainer


def written(path: Path, kinds: list[Any], **columns: Any) -> str:
    pd.DataFrame({"kind": kinds, **columns}).to_csv(path, index=False)
    return str(path)


def test_numbers_are_not_taken_for_strings_that_the_training_data_had(tmp_path: Path) -> None:
    trainer = fitted()
    columns: dict[str, list[Any]] = {"kind": [0, 1, 2], "y": [0.0, 1.0, 2.0]}
    pq.write_table(pa.table(columns), tmp_path / "new.parquet")
    with pa.ipc.new_file(tmp_path / "new.arrow", pa.table(columns).schema) as file:
        file.write_table(pa.table(columns))
    told = r"column 'kind' of .* holds no strings, and in the training data it does: 'ant', 'bee', 'zoo'"
    series = {name: pd.Series(column) for name, column in columns.items()}
    for data in (pd.DataFrame(columns), pa.table(columns), tmp_path / "new.parquet", tmp_path / "new.arrow", series):
        for use in (trainer.predict, trainer.validate, trainer.step):
            with pytest.raises(hr.DataError, match=told):
                use(data)
    path = written(tmp_path / "new.csv", columns["kind"], y=columns["y"])
    for use in (trainer.predict, trainer.validate, trainer.step):
        with pytest.raises(hr.DataError, match=r"column 'kind' of .*row 0: unknown string '0'"):
            use(path)
    codes = trainer.predict({"kind": torch.tensor([2, 2])})
    assert torch.equal(codes, trainer.predict(pd.DataFrame({"kind": ["zoo", "zoo"]}))), "an array may hold codes"


def test_tables_that_were_opened_with_categories_of_their_own_are_refused(tmp_path: Path) -> None:
    fitted(run=tmp_path / "run")
    trainer, path = loaded(tmp_path / "run"), written(tmp_path / "new.csv", ["zoo"], y=[2.0])
    for call in (trainer.predict, trainer.validate, trainer.test):
        with pytest.raises(
            hr.DataError, match=r"'kind' than the training data: 3 strings there and 1 here; 0 is 'ant'"
        ):
            call(hr.open_table(path))
    assert trainer.predict(hr.open_table(path, categories=trainer.categories)) > 0
    assert trainer.predict({"kind": torch.tensor([2])}) > 0  # numbers say nothing of strings


def test_strings_that_look_like_numbers_stay_strings(tmp_path: Path) -> None:
    trainer = fitted(train().assign(kind=["1", "2", "other"] * 4))
    assert trainer.predict(written(tmp_path / "new.csv", ["2"])) == trainer.model.table.weight[1]


def test_what_a_map_makes_of_codes_depends_on_them_too(tmp_path: Path) -> None:
    def hot(fields: Any) -> Any:
        return {"x": nn.functional.one_hot(fields["kind"], 3).double(), "y": fields["y"]}

    def trainer() -> hr.Trainer:
        model = nn.Sequential(nn.Linear(3, 1).double(), nn.Flatten(0))
        return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1))

    whole, other = train(), train().replace("ant", "cat")
    trainer().fit(hr.map(whole, hot), epochs=1, progress=False, run=tmp_path / "run")
    another = trainer()
    hr.load_weights(another.model, tmp_path / "run", which="last")
    another.predict(hr.map(whole, hot))
    with pytest.raises(hr.DataError, match="other categories in 'kind'"):
        another.predict(hr.map(other, hot))
    with pytest.raises(hr.DataError, match="table 1 has other categories"):
        hr.concat(hr.map(whole, hot), hr.map(other, hot))


def test_a_run_is_not_resumed_with_strings_that_have_other_numbers(tmp_path: Path) -> None:
    fitted(run=tmp_path / "run")
    other = train().replace("ant", "cat")
    with pytest.raises(hr.DataError, match=r"other categories in 'kind' than those of the run: .* 0 is 'ant' there"):
        make().fit(other, epochs=2, progress=False, run=tmp_path / "run")
    trainer = make()
    with pytest.warns(UserWarning, match="override=True: the run goes on all the same, although .* 0 is 'ant' there"):
        trainer.fit(other, epochs=2, progress=False, run=hr.Run(tmp_path / "run", override=True, logs=False))
    assert trainer.categories == loaded(tmp_path / "run").categories == {"kind": ["bee", "cat", "zoo"]}


def test_categories_are_known_through_views_of_a_reader_and_at_a_center() -> None:
    y = torch.arange(12, dtype=torch.float64)
    table = hr.ArrayTable({"kind": torch.arange(12) % 3, "y": y}, categories={"kind": KINDS})
    for data, strategy in ((hr.head(hr.Reader(table), 6), None), (table, hr.Elastic())):
        model = Look()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainer = hr.Trainer(model, hr.MSE(), optimizer, inputs="kind", strategy=strategy)
        trainer.fit(data, epochs=1, progress=False)
        assert trainer.categories == {"kind": KINDS}


def test_strings_are_not_taken_for_numbers_that_the_training_data_had() -> None:
    codes = {"kind": torch.arange(12) % 3, "y": torch.tensor([0.0, 1.0, 2.0] * 4, dtype=torch.float64)}
    trainer = fitted(codes)
    assert trainer.categories == {}
    with pytest.raises(hr.DataError, match="there they are numbers, here strings"):
        trainer.predict(pd.DataFrame({"kind": ["zoo"]}))
    with pytest.raises(hr.DataError, match="there they are numbers, here strings"):
        fitted(codes, val=train())


def test_batches_of_a_loop_of_ones_own_number_strings_alike() -> None:
    trainer = make()
    trainer.step(train())
    before = trainer.model.table.weight.clone()
    trainer.step(train().iloc[2:3])
    changed = (trainer.model.table.weight != before).flatten().tolist()
    assert changed == [False, False, True]
    with pytest.raises(hr.DataError, match="unknown string 'cat'"):
        trainer.step(train().replace("zoo", "cat"))
