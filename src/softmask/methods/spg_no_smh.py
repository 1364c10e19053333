"""SPG without soft-masking of the head, which then learns at the full rate.

SPG with one thing left out: the current head is trained at the full learning rate while the updates of the backbone are
scaled down. Source: Konishi et al., ICML 2023, ablation study.
Remembers between tasks: as SPG, one number per parameter of the backbone.
Equations: those of SPG without equation 7.
Departures: dropout rates are those of SPG, so that only the mechanism differs.
Cost: that of SPG.
"""

from softmask.learning import register
from softmask.methods.spg import SPG


@register("spg-no-smh")
class SPGWithoutMaskedHead(SPG):
    title = "SPG (w/o SMH)"

    def head_factor(self) -> float:
        return 1.0
