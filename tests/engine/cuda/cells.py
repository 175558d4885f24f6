"""The cells: what is run on the CPU device and on CUDA over the stand-ins."""

import dataclasses

import host
from host import _ffi

S, R = _ffi.ALQ_AXIS_DP_SHARD, _ffi.ALQ_AXIS_DP_REPLICATE
BOTH = S | R
EACH, LAST = _ffi.ALQ_DEFER_EACH, _ffi.ALQ_DEFER_LAST
COPY = _ffi.ALQ_GATHER_COPY
NEVER, PLENTY = -1, 3  # prefetch
HSDP = "dp_replicate=2,dp_shard=2"
ADAMW = {"kind": _ffi.ALQ_OPTIM_ADAMW, **host.ADAMW}
SGD = {"kind": _ffi.ALQ_OPTIM_SGD, "momentum": 0.9, "nesterov": 1}
SGD_PLAIN = {"kind": _ffi.ALQ_OPTIM_SGD}
EVERY = (0, 1, 2, 3)
FINAL = (2,)


@dataclasses.dataclass
class Cell:
    name: str
    strategy: int
    ranks: int
    dtype: str = "f32"
    microbatches: int = 1
    prefetch: int = 0
    defer: int = 0
    mesh: str = ""
    masks: tuple = (0, 0, 0)  # of CUSTOM
    places: dict = dataclasses.field(default_factory=dict)
    optimizer: dict = dataclasses.field(default_factory=lambda: ADAMW)
    clip: float = 0.5
    steps: int = 3
    reports: tuple = FINAL  # steps with a report
    nan: int = -1           # parameter that is not finite in step 1
    passes: str = ""        # how backwards go
    evaluates: bool = False
    holds: bool = False
    captures: bool = False  # steps after the first are one graph's launches
    around: bool = False    # evaluated before these and after them
    streams: int = 1        # 2: every step on the other one
    drops: str = ""         # released with this in flight: a call's work
    collects: bool = False  # first some collectives, on two streams
    max_open: int = 1
    processes: bool = False
    poison: bool = True     # of freed memory
    numbers: bool = False   # steps get another number while one is in flight
    empty: bool = False     # no unit is begun in odd steps

    def states(self):
        if self.optimizer["kind"] == _ffi.ALQ_OPTIM_ADAMW:
            return (_ffi.ALQ_STATE_0, _ffi.ALQ_STATE_1)
        return (_ffi.ALQ_STATE_0,) if "momentum" in self.optimizer else ()

    @property
    def plan(self):
        plan = dict(strategy=self.strategy, microbatches=self.microbatches,
                    prefetch=self.prefetch, defer=self.defer, gather=COPY,
                    max_open=self.max_open)
        if self.strategy == _ffi.ALQ_STRATEGY_CUSTOM:
            plan.update(zip(("param_axes", "grad_axes", "state_axes"),
                            self.masks))
        if self.holds:
            plan["phases"] = _ffi.ALQ_PHASE_HOLD_ALL | 3
        return plan


DDP, ZERO1, ZERO2, FSDP, HYBRID, CUSTOM = (
    _ffi.ALQ_STRATEGY_DDP, _ffi.ALQ_STRATEGY_ZERO1, _ffi.ALQ_STRATEGY_ZERO2,
    _ffi.ALQ_STRATEGY_FSDP, _ffi.ALQ_STRATEGY_HSDP, _ffi.ALQ_STRATEGY_CUSTOM)

CELLS = [
    Cell("alone", _ffi.ALQ_STRATEGY_SINGLE, 1, microbatches=3),
    Cell("alone, SGD, f64", _ffi.ALQ_STRATEGY_SINGLE, 1, "f64",
         optimizer=SGD, reports=EVERY, streams=2),
    Cell("alone, bf16, two backwards", _ffi.ALQ_STRATEGY_SINGLE, 1, "bf16",
         passes="two backwards", max_open=2),
    Cell("alone, not finite", _ffi.ALQ_STRATEGY_SINGLE, 1, "f64", nan=8,
         reports=EVERY),
    Cell("DDP", DDP, 2, microbatches=3),
    Cell("DDP, each, f64", DDP, 2, "f64", microbatches=3, defer=EACH,
         reports=EVERY),
    Cell("DDP, last, bf16, 4 ranks", DDP, 4, "bf16", microbatches=3,
         defer=LAST, clip=0.0),
    Cell("DDP, SGD, pushed", DDP, 2, optimizer=SGD, passes="push",
         streams=2),
    Cell("ZERO1", ZERO1, 2, microbatches=3, reports=EVERY),
    Cell("ZERO1, f64, 4 ranks, two streams", ZERO1, 4, "f64", streams=2),
    Cell("ZERO1, not finite, unused", ZERO1, 2, nan=8, passes="unused",
         reports=EVERY),
    Cell("ZERO2, each", ZERO2, 2, microbatches=3, defer=EACH),
    Cell("ZERO2, f64, SGD, last", ZERO2, 2, "f64", microbatches=3, defer=LAST,
         optimizer=SGD_PLAIN, clip=0.0),
    Cell("ZERO2, bf16, 4 ranks", ZERO2, 4, "bf16", evaluates=True,
         reports=EVERY),
    Cell("FSDP", FSDP, 2, microbatches=3, reports=EVERY),
    Cell("FSDP, no prefetch", FSDP, 2, prefetch=NEVER, streams=2),
    Cell("FSDP, prefetch 3, each", FSDP, 2, microbatches=3, prefetch=PLENTY,
         defer=EACH),
    Cell("FSDP, f64, last, two streams", FSDP, 2, "f64", microbatches=3,
         defer=LAST, streams=2),
    Cell("FSDP, bf16, prefetch 3", FSDP, 2, "bf16", prefetch=PLENTY),
    Cell("FSDP, 4 ranks, checkpoint", FSDP, 4, passes="recompute",
         microbatches=3),
    Cell("FSDP, checkpoint inside, no prefetch", FSDP, 2, prefetch=NEVER,
         passes="recompute inside", max_open=2),
    Cell("FSDP, not finite, no report", FSDP, 2, nan=6, streams=2),
    Cell("FSDP, held, evaluated", FSDP, 2, holds=True, evaluates=True,
         microbatches=3),
    Cell("FSDP, a parameter unused", FSDP, 2, passes="unused",
         reports=EVERY, microbatches=3),
    Cell("FSDP, released in a step", FSDP, 2, drops="step",
         prefetch=PLENTY),
    *(Cell(f"DDP, released in {what}", DDP, 1, drops=what, steps=1,
           reports=(0,), passes="push" if what == "push" else "")
      for what in ("begin", "end", "microbatch", "push")),
    Cell("FSDP, numbered", FSDP, 2, numbers=True, reports=(2,)),
    Cell("FSDP, collectives", FSDP, 2, collects=True, streams=2),
    Cell("FSDP, captured, stops early", FSDP, 2, captures=True, steps=4,
         passes="stops"),
    Cell("FSDP, captured", FSDP, 2, captures=True, steps=4),
    Cell("FSDP, captured, evaluated around", FSDP, 2, captures=True, steps=4,
         around=True),
    Cell("ZERO2, captured, evaluated around", ZERO2, 2, captures=True, steps=4,
         around=True, microbatches=3),
    Cell("HSDP, captured, evaluated around", HYBRID, 4, mesh=HSDP,
         captures=True, steps=4, around=True, prefetch=PLENTY),
    Cell("DDP, captured, 3 microbatches", DDP, 2, captures=True, steps=4,
         microbatches=3),
    Cell("FSDP, not poisoned", FSDP, 2, microbatches=3, poison=False),
    Cell("DDP, empty steps", DDP, 2, steps=4, streams=2, empty=True),
    Cell("FSDP, processes", FSDP, 2, microbatches=3, processes=True),
    Cell("HSDP", HYBRID, 4, mesh=HSDP, microbatches=3),
    Cell("HSDP, bf16, each, processes", HYBRID, 4, "bf16", mesh=HSDP,
         microbatches=3, defer=EACH, processes=True),
    Cell("states over both axes", CUSTOM, 4, mesh=HSDP, masks=(S, S, BOTH),
         microbatches=3, streams=2),
    Cell("each unit another", HYBRID, 4, "f64", mesh=HSDP, microbatches=3,
         defer=EACH, places={0: (0, 0, BOTH), 3: (0, 0, BOTH),
                             1: (BOTH, BOTH, BOTH), 2: (S, BOTH, BOTH)}),
]
BY_NAME = {cell.name: cell for cell in CELLS}
