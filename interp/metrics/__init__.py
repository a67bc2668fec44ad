"""Metrics: what a run is judged by, one number per example.

A metric says beforehand which positions and which tokens of the vocabulary it reads, so that a sweep computes only
those logits. Every metric is larger the better the answer does, except ``Loss``, ``KL`` and ``Rank``.

==================  =====================================================  ===========
LogitDifference     logit(answer) - logit(wrong)                           logits
Logit               logit(answer)                                          logits
Probability         p(answer)                                              probability
LogProbability      log p(answer)                                          nats
Rank                how many tokens have a higher logit than the answer    tokens
KL                  KL(reference || this run)                              nats
Loss                mean next-token loss                                   nats
==================  =====================================================  ===========

``recovered_fraction`` puts a patched run between two others.
"""

from interp.metrics.answer import Logit, LogitDifference, LogProbability, Probability, Rank
from interp.metrics.distribution import KL, Loss
from interp.metrics.given import AnyMetric, Custom, as_metric, as_metrics, fitting
from interp.metrics.metric import Metric
from interp.metrics.recovered import recovered_fraction

__all__ = [
    "KL",
    "AnyMetric",
    "Custom",
    "LogProbability",
    "Logit",
    "LogitDifference",
    "Loss",
    "Metric",
    "Probability",
    "Rank",
    "as_metric",
    "as_metrics",
    "fitting",
    "recovered_fraction",
]
