"""Bandwidth of torch's fused AdamW and foreach copies, for scripts/gpu_check.

One JSON object per line, as gpu_test prints them.  Exits with 77 where there is
no torch or no GPU for it.
"""

import json
import sys
import time

COUNT, TENSORS = 1 << 27, 64  # elements, and the parts they are in
ROUNDS, CALLS = 5, 20


def say(check, status="ok", why="", **figures):
    print(json.dumps({"check": check, "status": status, "why": why, **figures}),
          flush=True)


def gb_per_s(torch, call, count):
    """Of `count` bytes per call: the best of some rounds."""
    best = 0.0
    for turn in range(ROUNDS + 1):  # the first warms up
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        if turn > 0:
            best = max(best, count * CALLS / (time.perf_counter_ns() - start))
    return best


def measure(torch):
    def tensors(dtype):
        return [torch.zeros(COUNT // TENSORS, dtype=dtype, device="cuda")
                for _ in range(TENSORS)]

    wide, other = tensors(torch.float32), tensors(torch.float32)
    copy = gb_per_s(torch, lambda: torch._foreach_copy_(other, wide), COUNT * 8)
    say("torch: bandwidth of foreach copy f32", gb_per_s=copy)
    half = tensors(torch.bfloat16)
    for name, to, source in (("f32 to bf16", half, wide),
                             ("bf16 to f32", wide, half)):
        rate = gb_per_s(
            torch, lambda a=to, b=source: torch._foreach_copy_(a, b), COUNT * 6)
        say(f"torch: bandwidth of foreach copy {name}", gb_per_s=rate,
            of_copy=rate / copy)
    del half, other
    params = [torch.nn.Parameter(w) for w in wide]
    for p in params:
        p.grad = torch.zeros_like(p)
    adamw = torch.optim.AdamW(params, lr=1e-3, fused=True)
    # Reads parameter, gradient and two states, writes all but the gradient.
    rate = gb_per_s(torch, adamw.step, COUNT * 28)
    say("torch: bandwidth of fused AdamW", gb_per_s=rate, of_copy=rate / copy)


def main():
    try:
        import torch
    except ImportError as error:
        print(error, file=sys.stderr)
        return 77
    if not torch.cuda.is_available():
        print("torch sees no GPU", file=sys.stderr)
        return 77
    say("torch", version=torch.__version__, cuda=str(torch.version.cuda),
        card=torch.cuda.get_device_name())
    measure(torch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
