"""The public door for methods: all that a method of another package is written against.

    from softmask.learning import Method, Step, Task, register, search

`docs/adding-a-method.md` shows how; `softmask.testing` holds the contract.
"""

from softmask.core.answers import evaluating
from softmask.learning.backbones import NetworkError, trust_network
from softmask.learning.capacity import blocked_shares
from softmask.learning.distilling import DistillingMethod
from softmask.learning.evaluation import accuracy
from softmask.learning.fit import DivergedError, Fit, Fitter
from softmask.learning.merging import MergingMethod
from softmask.learning.method import BackboneMismatch, Cost, Facts, Method, Step, Uses, sgd_with_two_rates
from softmask.learning.networks import Backbone, Block
from softmask.learning.penalty import QuadraticPenaltyMethod
from softmask.learning.per_parameter import PerParameter
from softmask.learning.registry import METHODS, register
from softmask.learning.replay import ClassBalancedBuffer, ReplayBuffer, ReservoirBuffer
from softmask.learning.replaying import ReplayMethod
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.learning.seeds import Draws, Seeds, derive
from softmask.learning.settings import new_field, require_above_zero, require_not_negative, require_share, search
from softmask.learning.task import Batches, Normalisation, Task, TaskSequence
from softmask.learning.training import PRESETS, Training

__all__ = [
    "METHODS",
    "PRESETS",
    "Backbone",
    "BackboneMismatch",
    "Batches",
    "Block",
    "ClassBalancedBuffer",
    "Cost",
    "DistillingMethod",
    "DivergedError",
    "Draws",
    "Facts",
    "Fit",
    "Fitter",
    "MergingMethod",
    "Method",
    "NetworkConfig",
    "NetworkError",
    "Normalisation",
    "PerParameter",
    "QuadraticPenaltyMethod",
    "ReplayBuffer",
    "ReplayMethod",
    "ReservoirBuffer",
    "Scenario",
    "Seeds",
    "Step",
    "Task",
    "TaskSequence",
    "Training",
    "Uses",
    "accuracy",
    "blocked_shares",
    "derive",
    "evaluating",
    "new_field",
    "register",
    "require_above_zero",
    "require_not_negative",
    "require_share",
    "search",
    "sgd_with_two_rates",
    "trust_network",
]
