"""Naive continual learning: fine-tune the shared network on each task, with no protection.

The lower reference of every comparison. Source: Konishi et al., ICML 2023.
Remembers between tasks: nothing but the network. Old heads stay as they are, to the bit; they become stale because the
backbone moves under them.
Departures from the authors' code: none.
Cost: the unit in which the other methods' costs are told.
"""

from softmask.learning.catalogue import register
from softmask.learning.method import Method


@register("ncl")
class NCL(Method):
    title = "NCL"
