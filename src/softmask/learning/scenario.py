"""Known before the first task: the shape of the input, the classes of each task, the network and the seeds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from softmask.learning.networks import Backbone, alexnet
from softmask.learning.seeds import Seeds


@dataclass(frozen=True)
class NetworkConfig:
    """The one backbone that all methods share: the AlexNet of HAT's authors."""

    __pydantic_config__ = {"extra": "forbid"}

    width: float = 1.0
    """Share of the channels and units of the full network."""
    drop1: float = 0.2
    """Dropout after the first two layers."""
    drop2: float = 0.5
    """Dropout after the other three."""

    def __post_init__(self) -> None:
        if not 0 < self.width <= 8:
            raise ValueError(f"width must lie above 0 and up to 8, not {self.width}")
        for name in ("drop1", "drop2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in 0..1 (1 excluded), not {getattr(self, name)}")


@dataclass(frozen=True)
class Scenario:
    """Facts that a method may use before it learns anything."""

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
        return alexnet(self.input_shape, width=network.width * scale, drop1=network.drop1, drop2=network.drop2)

    def heads(self, width: int) -> nn.ModuleList:
        """One linear head for each task, all made before the first."""
        return nn.ModuleList(nn.Linear(width, classes) for classes in self.classes)
