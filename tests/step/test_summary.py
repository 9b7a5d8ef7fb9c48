"""A summary shows layers, shapes and parameters, and changes nothing."""

import torch
from torch import Tensor, nn

import headrace as hr

X, Y = torch.randn(9, 5), torch.zeros(9, dtype=torch.long)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout())
        self.head, self.spare = nn.Linear(4, 3), nn.Linear(2, 2)
        self.gain = nn.Parameter(torch.ones(1))
        for parameter in self.body[0].parameters():
            parameter.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)) * self.gain
        return out


TABLE = """\
layer    kind         output        parameters  trained
(model)  Branches     (rows, 3)              1        1
body.0   Linear       (rows, 4)             24        0
body.1   BatchNorm1d  (rows, 4)              8        8
body.2   Dropout      (rows, 4)              0        0
head     Linear       (rows, 3)             15       15
spare    Linear       (not called)           6        6
54 parameters, 30 of them trained"""


def test_a_summary_shows_layers_shapes_and_parameters() -> None:
    trainer = hr.Trainer(Branches(), device="cpu")
    before, stood = {k: v.clone() for k, v in trainer.model.state_dict().items()}, torch.get_rng_state()
    assert trainer.summary((X, Y)) == TABLE
    assert trainer.summary(hr.samples([{"x": x} for x in X])) == TABLE
    assert "output" not in trainer.summary()
    assert trainer.summary().endswith("54 parameters, 30 of them trained")
    assert all(map(torch.equal, before.values(), trainer.model.state_dict().values()))
    assert torch.equal(stood, torch.get_rng_state())
    assert all(module.training and not module._forward_hooks for module in trainer.model.modules())
