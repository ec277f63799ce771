"""Which arms learn: probabilities, their update from gradient norms, exact-size sampling (kernels/bandit.h, in double NumPy)."""
import numpy as np

from philox import SAMPLE, permutation, philox, uniform


def capped_simplex(log_w, budget, p_min):
    """The p of least relative entropy to w with p_min <= p <= 1 and sum budget: p = clip(w e^m), m by bisection."""
    budget = min(max(budget, len(log_w) * p_min), len(log_w))
    log_w = log_w - log_w.max()
    low, high = np.log(p_min), -log_w.min()                 # all at p_min, all at 1
    for _ in range(200):
        m = (low + high) / 2
        if np.clip(np.exp(np.minimum(log_w + m, 0)), p_min, 1).sum() < budget:
            low = m
        else:
            high = m
    return np.clip(np.exp(np.minimum(log_w + high, 0)), p_min, 1)


def bandit_update(p, squares, sampled, alpha, p_min, budget):
    """JointSpar (Liu & Mozafari, ICML 2022). squares [n]: squared gradient norms, read only where an arm was sampled."""
    norm = np.sqrt(np.where(sampled, squares, 0.0))
    fed = sampled & np.isfinite(norm) & (norm > 0)
    if not fed.any():
        return p
    loss = np.zeros_like(p)
    loss[fed] = p_min ** -2.0 - (norm[fed] / norm[fed].max() / p[fed]) ** 2
    loss[fed] -= loss[fed].min()
    return capped_simplex(np.log(p) - alpha * loss / p, budget, p_min)


def sample_arms(p, seed, step, group):
    """Exactly round(sum p) arms with inclusion probabilities p: one uniform offset, unit steps along a random order."""
    n = len(p)
    bits = philox(seed, SAMPLE, step, (group << 32) + np.arange(n))
    order, u = permutation(bits[:, 0], n), float(uniform(bits[0, 1]))
    end = np.cumsum(p[order])                               # sequential, in double
    end[-1] = np.floor(p.sum() + 0.5)
    drawn = np.ceil(end - u)                                # how many k + u, k = 0, 1, ..., lie below each end
    sampled = np.zeros(n, dtype=bool)
    sampled[order] = np.diff(drawn, prepend=0.0) > 0
    return sampled


def largest_arms(score, count):
    """The arms of largest score; ties go to the lower number."""
    sampled = np.zeros(len(score), dtype=bool)
    sampled[np.argsort(-score, kind="stable")[:count]] = True
    return sampled


class ArmGroup:
    """Arms of equal cost under one budget. `squares` is what the last measured step says of each arm: squared gradient norms
    (bandit) or squared activations (norm)."""

    def __init__(self, number, count, keep):
        self.number, self.count = number, count
        self.budget = max(1, int(np.floor(keep * count + 0.5)))
        self.p = np.full(count, self.budget / count)
        self.sampled = np.zeros(count, dtype=bool)
        self.squares = np.zeros(count)

    def resample(self, policy, r, seed, alpha, p_min):
        """Resampling number r of the run."""
        if r > 0 and policy == "bandit":
            self.p = bandit_update(self.p, self.squares, self.sampled, alpha, p_min, self.budget)
        if r > 0 and policy == "norm":
            self.sampled = largest_arms(self.squares, self.budget)
        else:
            self.sampled = sample_arms(self.p, seed, r, self.number)
