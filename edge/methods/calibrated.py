"""Class-share calibration, client side: the logits of training losses are shifted by the client's class shares.

Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021, https://arxiv.org/abs/2007.07314; Zhang et al.,
Federated Learning with Label Distribution Skew via Logits Calibration (FedLC), ICML 2022,
https://arxiv.org/abs/2209.00189

A client of few classes can lower its loss by their shares alone, without a look at an example. With tau * log(share) of
each class added to its logit, the shares are taken care of, and the model learns what tells the classes apart. FedLC's
margin, tau * n_c^(-1/4) with n_c the client's examples of class c, is subtracted instead; FedLC's sum in the
denominator leaves the true class out, where here is the softmax over all classes.

The shift applies to all paths of an objective: main path, hybrid pathways, teachers. Evaluation has none, so that the
model predicts as for equal shares of all classes. tau = 0 is the objective alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.protocol.options.calibrated import CalibratedOptions
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import GradientCorrection, VisitContext

LEAST = 1e-8
"""Stands in for the share, or the number of examples, of a class that the client does not hold."""


class CalibratedCorrection(GradientCorrection):
    """Shifts the logits of training losses."""

    options: CalibratedOptions

    capturable = True
    """The shift has a fixed address, and no gradient is changed."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Compute the shift of this client."""
        tau: float = self.options.tau
        if tau and visit.class_counts.any():
            shift = class_shift(visit.class_counts, self.options.form)
            self.logit_shift = net.logit_scratch("calibrated: shift", tau * shift)


def class_shift(counts: NDArray[np.int64], form: str) -> NDArray[np.float64]:
    """(classes,): log(share of c) for ``shares``, -n_c^(-1/4) for ``margin``, from the client's examples per class."""
    if form == "margin":
        return np.asarray(-(np.maximum(counts, LEAST) ** -0.25))
    return np.asarray(np.log(np.maximum(counts / counts.sum(), LEAST)))
