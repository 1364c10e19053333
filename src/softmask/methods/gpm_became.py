"""GPM+BECAME: each task is learned by GPM and then without constraints; the two solutions are merged by curvature.

GPM protects old tasks but leaves little free capacity for later ones; plain training uses all capacity and forgets.
Between the two solutions lies one that is better than both for the sum of all tasks; its position follows from Fisher
information. Source: Li, Lu, Dai, Huang, Ding and Lu, ICML 2025 (BECAME); Saha, Garg and Roy, ICLR 2021 (GPM).
Remembers between tasks: as GPM, and one number per parameter of the backbone, the Fisher information summed over the
tasks.
Equations: w = a + share * (b - a), with GPM's solution a, the solution b that plain training finds from there, and
share = sum of F (b - a)^2 / sum of (P + F) (b - a)^2; F is the Fisher information of the new task at b, P the sum of
those of the old tasks, each measured at the end of its task. The new head is merged with the same share.
Departures: the authors' code was not public when this was written, so the details are ours: F is measured as in EWC, on
batches of 20 with true labels, dropout off; the unconstrained training has as many epochs as GPM's, its own early
stopping, and a tenth of the learning rate. At the full rate the two solutions lie so far apart that the merged model
fails on the new task (D-5: 54 percent, where both solutions have 100).
Cost: from the second task on, every task is learned twice; each task ends with two passes in small batches.
"""

from __future__ import annotations

from softmask.learning import Cost, MergingMethod, Scenario, register
from softmask.methods.gpm import GPM


@register("gpm-became")
class GPMBecame(MergingMethod, GPM):
    title = "GPM+BECAME"

    def name_of_draws(self) -> str:
        """GPM measures the same images; the Fisher information draws nothing."""
        return GPM.__name__

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        gpm = GPM.cost(scenario)
        # Batches of 20 cost about twice as much an image as batches of 64.
        passes = gpm.task_end_passes + 4 * scenario.num_tasks
        return Cost(gpm.step, fits=2, task_end_passes=passes, kept_copies=gpm.kept_copies + 1)
