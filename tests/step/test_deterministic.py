"""With `deterministic=True`, what torch cannot repeat to the bit is named instead of being computed."""

import pytest
import torch
from torch import Tensor, nn

import headrace as hr


class Puts(nn.Linear):
    """Writes by indices, of which torch says that it is not deterministic, on every device."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x + torch.zeros_like(x).put_(torch.tensor([0]), torch.tensor([0.0]))


def trainer(deterministic: bool) -> hr.Trainer:
    model = Puts(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return hr.Trainer(model, hr.MSE(), optimizer, deterministic=deterministic, device="cpu")


@pytest.mark.parametrize("way", ["step", "fit"])
def test_what_is_not_deterministic_is_named(way: str) -> None:
    data = torch.randn(4, 3), torch.randn(4, 2)
    with pytest.raises(hr.ConfigError, match=r"deterministic=True: torch has no deterministic put_\. Replace it"):
        trainer(True).step(data) if way == "step" else trainer(True).fit(data, epochs=1, progress=False)
    assert trainer(False).step(data)["total_loss"] > 0
    assert not torch.are_deterministic_algorithms_enabled()
