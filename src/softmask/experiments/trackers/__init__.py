"""Experiment trackers, fed from a run's events. None is imported unless asked for."""

from softmask.experiments.trackers.tracking import TRACKERS, Tracker, TrackerMissing, check_trackers, tracked

__all__ = ["TRACKERS", "Tracker", "TrackerMissing", "check_trackers", "tracked"]
