"""From stored runs to tables; nothing is drawn here."""

from softmask.experiments.analyses.catalogue import ANALYSES, Analysis, analysis

__all__ = ["ANALYSES", "Analysis", "analysis"]
