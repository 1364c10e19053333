"""A model in a folder that learns one task after another, with protection against forgetting."""

from softmask.models.description import KnownTask, ModelConfig
from softmask.models.folder import ModelFolderError
from softmask.models.history import History
from softmask.models.inspection import Inspection
from softmask.models.model import ContinualModel, Prediction

__all__ = ["ContinualModel", "History", "Inspection", "KnownTask", "ModelConfig", "ModelFolderError", "Prediction"]
