"""The walk: a personalized PageRank whose transitions differ from question to question.

They differ through one number per relation, so nothing is built for a question: an arc of relation
r from u moves ``w[question, r] / s[question, u]`` of the mass on u, where s sums over the arcs
that leave u. The back ends solve the same equations; ``plain`` states them most readably.
"""

from bisrqa.walk.arrivals import Arrivals, arrivals
from bisrqa.walk.forward_push import PushResult, push
from bisrqa.walk.graph import WalkGraph
from bisrqa.walk.solve import BACKENDS, SPPRResult, sppr

__all__ = [
    "BACKENDS",
    "Arrivals",
    "PushResult",
    "SPPRResult",
    "WalkGraph",
    "arrivals",
    "push",
    "sppr",
]
