"""Facts known before the first task: the input shape, the classes of each task, the network and the seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from softmask.learning.backbones import DROPOUT, NORMALISED, NetworkError, check_name, has_width, make_backbone
from softmask.learning.networks import Backbone
from softmask.learning.seeds import Seeds
from softmask.learning.settings import new_field


@dataclass(frozen=True)
class NetworkConfig:
    """The one backbone that all methods share; by default the AlexNet of HAT's authors."""

    __pydantic_config__ = {"extra": "forbid"}

    width: float = 1.0
    """Share of the channels and units of the full network."""
    drop1: float = 0.2
    """Dropout after the first two layers of `alexnet`; other networks have none there."""
    drop2: float = 0.5
    """Dropout after the other three of `alexnet`, and after both of `mlp`."""
    name: str = new_field("alexnet")
    """`alexnet`, `resnet18`, `vit-tiny`, `mlp`, `timm:NAME`, or a function of your own as `module:function`."""
    norm: Literal["batch"] | None = new_field(None)
    """None: `alexnet` has no normalisation, and that of `resnet18` is by group. `batch`, for these two: in `resnet18`
    with the running statistics of the first task; in `alexnet` after every layer by the statistics of the batch itself,
    in evaluation too, as the authors of GPM do, so that a prediction depends on the other images of the batch."""
    weights: str | None = new_field(None)
    """A file with weights to start from, safetensors or torch; None for random ones. Nothing is ever downloaded."""

    def __post_init__(self) -> None:
        check_name(self.name)
        for name in ("drop1", "drop2"):
            if name not in DROPOUT.get(self.name, ()) and getattr(self, name) != 0:
                raise ValueError(f"{self.name} has no dropout of ours: {name} must be 0, not {getattr(self, name)}")
        if self.width != 1 and not has_width(self.name):
            raise ValueError(f"{self.name} has a width of its own: width must be 1, not {self.width}")
        if self.norm is not None and self.name not in NORMALISED:
            raise ValueError(f"norm belongs to {' and '.join(NORMALISED)}, not to {self.name}: leave it out")
        if not 0 < self.width <= 8:
            raise ValueError(f"width must lie above 0 and up to 8, not {self.width}")
        for name in ("drop1", "drop2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in 0..1 (1 excluded), not {getattr(self, name)}")


@dataclass(frozen=True)
class Scenario:
    """Facts that a method may use before the first task."""

    input_shape: tuple[int, int, int]
    classes: tuple[int, ...]
    """Classes of each task, in the order of the sequence."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    seeds: Seeds = field(default_factory=Seeds)

    @property
    def num_tasks(self) -> int:
        return len(self.classes)

    def backbone(self, scale: float = 1.0) -> Backbone:
        """A new backbone, `scale` times as wide as the scenario's."""
        network = self.network
        if scale != 1 and (not has_width(network.name) or network.weights is not None):
            raise NetworkError(f"{network.name} has one width: a method that makes it narrower or wider cannot use it")
        return make_backbone(
            network.name,
            self.input_shape,
            width=network.width * scale,
            drop1=network.drop1,
            drop2=network.drop2,
            norm=network.norm,
            weights=network.weights,
        )

    def heads(self, width: int) -> nn.ModuleList:
        """One linear head for each task, all created before the first task."""
        return nn.ModuleList(nn.Linear(width, classes) for classes in self.classes)
