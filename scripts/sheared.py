"""What sheared backpropagation keeps for backward, as autograd functions: linear layers, GELU by 2-bit levels, attention with
pruned operands (BackRazor, Jiang et al., NeurIPS 2022; LowMemoryBP, Yang et al., ICML 2024; PreBackRazor, Yu et al., CVPR 2024).
"""
import math

import numpy as np
import torch
import torch.nn.functional as F

GELU_LEVEL = torch.tensor([0, -0.04922261145617846, 1.0979632065417297, -0.048740595085551286], dtype=torch.float64).cumsum(0)
GELU_THRESHOLD = (-3.1858810036855245, -0.001178821281161997, 3.190832613414926)


def prune_mask(x, prune):
    """bool [samples, n] for x [samples, n]: the largest |x| of each row, exactly n - m + 1 of them, as kernels/topk.h has it."""
    n = x.shape[1]
    m = min(max(int(n * prune), 1), n)
    magnitude = x.abs()
    threshold = magnitude.kthvalue(m, dim=1, keepdim=True).values
    mask = magnitude >= threshold
    for row in (mask.sum(1) > n - m + 1).nonzero()[:, 0].tolist():   # ties at the threshold: those of highest index go
        excess = int(mask[row].sum()) - (n - m + 1)
        mask[row, (magnitude[row] == threshold[row]).nonzero()[-excess:, 0]] = False
    return mask


def pack_pruned(x, prune):
    """Kept values and a bit mask of x [samples, ...]."""
    mask = prune_mask(x.flatten(1), prune).view(x.shape)
    return x[mask], torch.from_numpy(np.packbits(mask.numpy()))


def unpack_pruned(values, bits, shape):
    mask = torch.from_numpy(np.unpackbits(bits.numpy(), count=math.prod(shape)).view(bool)).view(shape)
    return torch.zeros(shape, dtype=values.dtype).masked_scatter_(mask, values)


class Shear:
    """What one linear layer keeps of its input X [b, t, cin], and where its weight learns.

    kind "pruned": values + bit mask of the largest |x| of each sample; dW is dense (and goes to the weight's grad).
         "columns": the sampled column blocks; dW is compact, [cout, k], and is gathered in self.dw.
         "frozen": nothing; no dW.
    """

    def __init__(self, kind, prune=0.0, width=0, columns=0):
        self.kind, self.prune, self.width = kind, prune, width
        self.arms = columns // width if kind == "columns" else 1
        self.blocks = torch.arange(self.arms)
        self.dw = None
        self.input_squares = None      # [arms] in double, summed where it is not None

    def measure_input(self, x):
        if self.input_squares is not None:
            columns = x.detach().flatten(0, 1).double().square_().sum(0)
            self.input_squares += columns.view(self.arms, -1).sum(1)

    def keep(self, x):
        if self.kind == "pruned":
            return pack_pruned(x, self.prune)
        if self.kind == "columns" and len(self.blocks):
            return (x.reshape(-1, self.arms, self.width).index_select(1, self.blocks).flatten(1),)
        return ()

    def weight_gradient(self, dy, kept, shape):
        """dY^T X over what was kept; dy [b, t, cout], shape = that of X."""
        dy = dy.flatten(0, 1)
        if self.kind == "pruned":
            return dy.t() @ unpack_pruned(*kept, shape).flatten(0, 1)
        if kept:
            dw = dy.t() @ kept[0]
            self.dw = dw if self.dw is None else self.dw.add_(dw)
        return None


class ShearedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, shear):
        shear.measure_input(x)
        ctx.shear, ctx.shape = shear, x.shape
        ctx.save_for_backward(w, *shear.keep(x))
        return F.linear(x, w, b)

    @staticmethod
    def backward(ctx, dy):
        w, *kept = ctx.saved_tensors
        dx = dy @ w if ctx.needs_input_grad[0] else None
        dw = ctx.shear.weight_gradient(dy, kept, ctx.shape)
        db = dy.sum((0, 1)) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None


class ReGelu2(torch.autograd.Function):
    """Exact GELU forward; backward multiplies by one of four levels, two bits an element."""

    @staticmethod
    def forward(ctx, x):
        codes = sum((x > c).to(torch.uint8) for c in GELU_THRESHOLD).flatten()
        codes = F.pad(codes, (0, -len(codes) % 4)).view(-1, 4)
        ctx.save_for_backward(codes[:, 0] | codes[:, 1] << 2 | codes[:, 2] << 4 | codes[:, 3] << 6)
        return F.gelu(x)

    @staticmethod
    def backward(ctx, dy):
        packed, = ctx.saved_tensors
        codes = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], 1).flatten()[:dy.numel()]
        return dy * GELU_LEVEL.to(dy.dtype)[codes.int()].view(dy.shape)


class PrunedAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt d) v with q, k, v [b, t, h, d]: exact forward; q, k, v and the softmax weights enter backward pruned.

    hidden (None, or bool [b, 1, 1, t]): keys that nobody sees. factor (None, or [b, h, t, t]): what dropout multiplies the weights by; it can
    be drawn again, so it does not count as kept."""

    @staticmethod
    def forward(ctx, q, k, v, prune, hidden=None, factor=None):
        qh, kh, vh = (a.transpose(1, 2) for a in (q, k, v))            # [b, h, t, d]
        scores = qh @ kh.transpose(2, 3) / math.sqrt(q.shape[3])
        probs = (scores if hidden is None else scores.masked_fill(hidden, -math.inf)).softmax(3)
        ctx.shape, ctx.factor = q.shape, factor
        ctx.save_for_backward(*(part for a in (q, k, v, probs) for part in pack_pruned(a, prune)))
        return ((probs if factor is None else probs * factor) @ vh).transpose(1, 2)

    @staticmethod
    def backward(ctx, d_o):
        b, t, h, d = ctx.shape
        kept = ctx.saved_tensors
        q, k, v = (unpack_pruned(*kept[2 * i:2 * i + 2], ctx.shape).transpose(1, 2) for i in range(3))
        probs = unpack_pruned(*kept[6:], (b, h, t, t))
        d_o = d_o.transpose(1, 2)
        weights, dprobs = probs, d_o @ v.transpose(2, 3)
        if ctx.factor is not None:
            weights, dprobs = probs * ctx.factor, dprobs * ctx.factor
        dv = weights.transpose(2, 3) @ d_o
        dscores = probs * (dprobs - (probs * dprobs).sum(3, keepdim=True)) / math.sqrt(d)
        dq, dk = dscores @ k, dscores.transpose(2, 3) @ q
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), None, None, None


class KeptBytes:
    """Bytes of the distinct storages that autograd saves for backward inside the `with`, parameters apart."""

    def __init__(self, parameters):
        self.seen = {p.untyped_storage().data_ptr() for p in parameters}
        self.held = []          # keeps the storages alive, so that no address comes twice
        self.bytes = 0

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.held.append(storage)
            self.bytes += storage.nbytes()
        return tensor

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *exception):
        self.hooks.__exit__(*exception)
        self.held.clear()
