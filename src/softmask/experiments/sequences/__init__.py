"""Sequences of tasks: one file for each family of data. They are found by name, see `load_sequence`."""

from softmask.experiments.sequences.catalogue import (
    SEQUENCES,
    Download,
    SequenceFacts,
    Source,
    load_sequence,
    sequence,
    sequence_facts,
)
from softmask.experiments.sequences.own import sequence_from

__all__ = [
    "SEQUENCES",
    "Download",
    "SequenceFacts",
    "Source",
    "load_sequence",
    "sequence",
    "sequence_facts",
    "sequence_from",
]
