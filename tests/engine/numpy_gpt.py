"""A small GPT in NumPy with its backward pass written out.

Blocks of RMSNorm, rotary causal attention and SwiGLU; the embedding is also the
output head.  The model keeps no parameters: a host lends them, unit by unit, in
each pass, and says where gradients go.  `PlainHost` is the host of one rank
without any engine, with AdamW (Loshchilov and Hutter) in NumPy.
"""

import numpy as np

VOCAB, DIM, HEADS, FFN, LAYERS, SEQ = 31, 16, 4, 24, 5, 7
HEAD = DIM // HEADS
EPS = 1e-5

ROOT = 0  # unit 0: embedding and final norm; block i is unit i + 1
BLOCK = [("norm1", (DIM,)), ("wq", (DIM, DIM)), ("wk", (DIM, DIM)),
         ("wv", (DIM, DIM)), ("wo", (DIM, DIM)), ("norm2", (DIM,)),
         ("gate", (FFN, DIM)), ("up", (FFN, DIM)), ("down", (DIM, FFN))]
UNITS = ([("root", [("embed", (VOCAB, DIM)), ("norm", (DIM,))])] +
         [("blocks.%d" % i, BLOCK) for i in range(LAYERS)])


def initial(seed=1):
    """Arrays by unit."""
    rng = np.random.default_rng(seed)
    return [[np.ones(shape) if len(shape) == 1 else
             rng.normal(0, 0.25, shape) for _, shape in params]
            for _, params in UNITS]


def put(view, beta, value):
    """Writes a gradient where the host wants it."""
    if beta:
        view += value
    else:
        view[...] = value


def flat(x):
    return x.reshape(-1, x.shape[-1])


def weight_grad(dy, x):
    return flat(dy).T @ flat(x)


def norm(x, w):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return x * r * w, r


def norm_backward(dy, x, r, w):
    g = dy * w
    dw = flat(dy * x * r).sum(0)
    return r * g - x * r**3 * (g * x).mean(-1, keepdims=True), dw


def rope(x, sign):
    angle = (np.arange(x.shape[1])[:, None] *
             10000.0 ** (-2.0 * np.arange(HEAD // 2) / HEAD))[None, :, None]
    c, s = np.cos(angle), sign * np.sin(angle)
    a, b = x[..., :HEAD // 2], x[..., HEAD // 2:]
    return np.concatenate([a * c - b * s, a * s + b * c], -1)


def split(x):
    return x.reshape(x.shape[0], x.shape[1], HEADS, HEAD)


def join(x):
    return x.reshape(x.shape[0], x.shape[1], DIM)


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def block(p, x):
    norm1, wq, wk, wv, wo, norm2, gate, up, down = p
    n1, r1 = norm(x, norm1)
    q, k = rope(split(n1 @ wq.T), 1), rope(split(n1 @ wk.T), 1)
    v = split(n1 @ wv.T)
    s = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(HEAD)
    later = np.triu(np.ones(s.shape[-2:], bool), 1)
    a = softmax(np.where(later, -np.inf, s))
    o = join(np.einsum("bhts,bshd->bthd", a, v))
    h = x + o @ wo.T
    n2, r2 = norm(h, norm2)
    z, u = n2 @ gate.T, n2 @ up.T
    sig = 1 / (1 + np.exp(-z))
    m = z * sig * u
    return h + m @ down.T, (x, n1, r1, q, k, v, a, o, h, n2, r2, z, u, sig, m)


def block_backward(p, grads, betas, kept, dy):
    norm1, wq, wk, wv, wo, norm2, gate, up, down = p
    x, n1, r1, q, k, v, a, o, h, n2, r2, z, u, sig, m = kept
    d_down = weight_grad(dy, m)
    dm = dy @ down
    dz, du = dm * u * (sig + z * sig * (1 - sig)), dm * z * sig
    dh, d_norm2 = norm_backward(dz @ gate + du @ up, h, r2, norm2)
    dh += dy
    d_o = split(dh @ wo)
    da = np.einsum("bthd,bshd->bhts", d_o, v)
    dv = join(np.einsum("bhts,bthd->bshd", a, d_o))
    ds = a * (da - (da * a).sum(-1, keepdims=True)) / np.sqrt(HEAD)
    dq = join(rope(np.einsum("bhts,bshd->bthd", ds, k), -1))
    dk = join(rope(np.einsum("bhts,bthd->bshd", ds, q), -1))
    dx, d_norm1 = norm_backward(dq @ wq + dk @ wk + dv @ wv, x, r1, norm1)
    for view, beta, value in zip(grads, betas, (
            d_norm1, weight_grad(dq, n1), weight_grad(dk, n1),
            weight_grad(dv, n1), weight_grad(dh, o), d_norm2,
            weight_grad(dz, n2), weight_grad(du, n2), d_down)):
        put(view, beta, value)
    return dx + dh


def microbatch(host, tokens, scale=None):
    """Mean loss; with a scale also the gradients of scale * loss."""
    x, y = tokens[:, :-1], tokens[:, 1:]
    train = scale is not None
    embed, final = host.begin(ROOT, train)
    h, kept = embed[x], []
    for u in range(1, LAYERS + 1):
        h, cache = block(host.begin(u, train), h)
        host.end(u, train)
        kept.append(cache)
    n, r = norm(h, final)
    prob = softmax(n @ embed.T)
    at = (np.arange(y.shape[0])[:, None], np.arange(y.shape[1])[None], y)
    loss = -np.log(prob[at]).mean()
    host.end(ROOT, train)
    if not train:
        return loss
    prob[at] -= 1
    dl = prob * (scale / y.size)
    (embed, final), grads, betas = host.begin_backward(ROOT)
    d_embed = weight_grad(dl, n)
    dh, d_final = norm_backward(dl @ embed, h, r, final)
    for u in range(LAYERS, 0, -1):
        p, views, adds = host.begin_backward(u)
        dh = block_backward(p, views, adds, kept.pop(), dh)
        host.end_backward(u)
    np.add.at(d_embed, x, dh)
    put(grads[0], betas[0], d_embed)
    put(grads[1], betas[1], d_final)
    host.end_backward(ROOT)
    return loss


class PlainHost:
    """One rank, no engine."""

    def __init__(self, arrays):
        self.params = arrays
        self.grads = [[np.zeros_like(p) for p in unit] for unit in arrays]
        self.m = [[np.zeros_like(p) for p in unit] for unit in arrays]
        self.v = [[np.zeros_like(p) for p in unit] for unit in arrays]
        self.steps = 0

    def begin(self, unit, _train):
        return self.params[unit]

    def end(self, unit, train):
        pass

    def begin_backward(self, unit):
        return self.params[unit], self.grads[unit], [1] * len(UNITS[unit][1])

    def end_backward(self, unit):
        pass

    def step(self, weight_sum, lr, weight_decay, beta1, beta2, eps):
        self.steps += 1
        for unit in zip(self.params, self.grads, self.m, self.v):
            for p, g, m, v in zip(*unit):
                mean = g / weight_sum
                m += (1 - beta1) * (mean - m)
                v *= beta2
                v += (1 - beta2) * mean * mean
                p *= 1 - lr * weight_decay
                p -= (lr / (1 - beta1**self.steps) * m /
                      (np.sqrt(v / (1 - beta2**self.steps)) + eps))
                g[...] = 0
