"""One rank of one contestant: a process that sleeps in a read until it is told
to train.

    contestant.py NAME         the world is in the environment

Commands on standard input, one answer line of JSON each:
    run MODE TOKENS STEPS [KEEPS]
                               {"begin": ns, "end": ns, "loss": x}; a barrier
                               of the contestant's own ranks comes before.
                               KEEPS 1: the loop keeps a step's loss, and so its
                               graph, over the next forward
    report                     what the engine says of its last step
    profile MODE TOKENS STEPS  cProfile's table, as text
    end                        an orderly end

A mode is a way of running the same model in the same memory: torch's AdamW
default or fused; our engine with communication on or off.
"""

import contextlib
import json
import os
import sys
import time
from typing import Any, Dict, List

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))
sys.dont_write_bytecode = True

import torch  # noqa: E402

import gpt  # noqa: E402

LR = 1e-4


class Contestant:
    """model, optimizer, and what a mode changes."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        torch.manual_seed(0)
        self.model: Any = gpt.GPT()
        self.optimizer: Any = None

    def set_mode(self, mode: str) -> None:
        raise NotImplementedError

    def barrier(self) -> None:
        raise NotImplementedError

    def report(self) -> Any:
        return None

    def end(self) -> None:
        pass

    def step(self, data: Any) -> Any:
        loss = self.model(data)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def run(self, mode: str, tokens: int, steps: int,
            keeps: int = 0) -> Dict[str, Any]:
        self.set_mode(mode)
        data = gpt.batch(self.rank, tokens)
        self.barrier()
        begin = time.monotonic_ns()
        for _ in range(steps):
            loss = self.step(data) if keeps else self.step(data).detach()
        end = time.monotonic_ns()
        self.barrier()
        self.set_mode("")
        return dict(begin=begin, end=end, loss=loss.item())


class Torch(Contestant):
    """Modes "default" and "fused": the two keep the same state, so one
    optimizer serves both."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        from torch import distributed
        self.distributed = distributed
        distributed.init_process_group(
            "gloo", init_method="tcp://127.0.0.1:" + os.environ["GLOO_PORT"],
            rank=rank, world_size=size)
        self.wrap()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR)

    def wrap(self) -> None:
        raise NotImplementedError

    def set_mode(self, mode: str) -> None:
        for group in self.optimizer.param_groups:
            group["fused"] = mode == "fused"

    def barrier(self) -> None:
        self.distributed.barrier()

    def end(self) -> None:
        self.distributed.destroy_process_group()


class Ddp(Torch):
    def wrap(self) -> None:
        self.model = torch.nn.parallel.DistributedDataParallel(self.model)


class Fsdp2(Torch):
    def wrap(self) -> None:
        from torch.distributed.fsdp import fully_shard
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)


class Ours(Contestant):
    """Modes "on", and "off": engine and model do all that they do, but no data
    moves between ranks and none is waited for."""

    def __init__(self, rank: int, size: int, strategy: str,
                 **plan: Any) -> None:
        super().__init__(rank, size)
        import aliquot.torch as at
        self.at = at
        self.context = at.default_context()
        self.model = at.shard(self.model, strategy, units=[gpt.Block], **plan)
        self.optimizer = at.AdamW(self.model.parameters(), lr=LR)

    def set_mode(self, mode: str) -> None:
        self.context.set_fault("engine.comm=skip" if mode == "off" else None)

    def barrier(self) -> None:
        self.context.world.barrier()

    def report(self) -> Any:
        return self.model._aliquot_runtime.engine.report()

    def end(self) -> None:
        self.at.close(self.model)


def make(name: str, rank: int, size: int) -> Contestant:
    if name == "fsdp2":
        return Fsdp2(rank, size)
    if name == "ddp":
        return Ddp(rank, size)
    strategy, _, gather = name.partition("-")[2].partition("-")
    return Ours(rank, size, strategy, **(dict(gather=gather) if gather else {}))


def profile(contestant: Contestant, arguments: List[Any]) -> str:
    import cProfile
    import io
    import pstats
    profiler = cProfile.Profile()
    profiler.enable()
    contestant.run(*arguments)
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(30)
    return text.getvalue()


def main() -> None:
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print does not go between the answers
    contestant = make(sys.argv[1], int(os.environ["ALIQUOT_RANK"]),
                      int(os.environ["ALIQUOT_WORLD_SIZE"]))

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")

    answer("ready")
    for line in sys.stdin:
        words = line.split()
        arguments = words[1:2] + [int(word) for word in words[2:]]
        if words[0] == "run":
            answer(contestant.run(*arguments))  # type: ignore[arg-type]
        elif words[0] == "profile":
            answer(profile(contestant, arguments))
        elif words[0] == "report":
            answer(contestant.report())
        elif words[0] == "end":
            contestant.end()
            answer("ended")
            break


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
