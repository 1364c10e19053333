"""A model in a folder that learns one task after another and keeps what it knew."""

from softmask.continual.description import KnownTask, ModelConfig
from softmask.continual.folder import ModelFolderError
from softmask.continual.inspection import Inspection
from softmask.continual.model import ContinualModel, Prediction

__all__ = ["ContinualModel", "Inspection", "KnownTask", "ModelConfig", "ModelFolderError", "Prediction"]
