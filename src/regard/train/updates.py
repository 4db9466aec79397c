"""One update of a run, and all that it moves: the model under its loss, the optimizer, the average of the weights.

The step is :meth:`Updates.step`. Nothing of files, people or time is here (loop.py has that): an update is a function
of what :meth:`Updates.tensors` gives, the batch and the number of the step, so that it can be made again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from regard.config import ModelConfig
from regard.data.batch import Vectors, draws
from regard.data.batches import Batch
from regard.memory import keep_freed_memory
from regard.nn import Transformer
from regard.nn.blocks import Block
from regard.recipe import Train
from regard.train import tasks, tune
from regard.train.compiled import compiled
from regard.train.distributed import World, gathered, local, scattered
from regard.train.loader import Update
from regard.train.muon import matrices
from regard.train.optim import Optimizer, learning_rate

# Steps from which compiling is taken to be worth its time. It takes some 30 seconds of an H200, which a small model
# earns back in 600 (compiled before) to 1,700 steps (benchmarks/start.py), and a larger one sooner.
EARNED_BACK = 1_000


class Updates:
    """A model that is trained. ``one_shape`` says that all its batches have the same."""

    def __init__(self, config: ModelConfig, task: str, train: Train, world: World, *, one_shape: bool):
        self.config, self.task, self.train, self.world, self.device = config, task, train, world, world.device
        if self.device.type == "cpu":
            keep_freed_memory()
        torch.manual_seed(self.train.seed)
        self.model = Transformer(config).to(self.device)
        tune.choose(self.model, self.train)
        objective = tasks.Objective(self.model, self.train.smoothing, self.train.r_drop, self.train.beta)
        on_gpu = self.device.type == "cuda"
        precision = self.train.precision or ("bfloat16" if on_gpu else "float32")
        self.dtype = torch.bfloat16 if precision == "bfloat16" else None  # None: as the weights are
        self.replays = False  # whether the step is a recorded graph
        earned = on_gpu and one_shape and self.train.steps >= EARNED_BACK
        self.compiles = earned if self.train.compile is None else self.train.compile
        if self.compiles:
            self._compile(objective, one_shape)
        self.objective = world.wrap(objective, self.dtype)
        self.parameters = dict(self.model.named_parameters())  # whole, or in shards
        self.weights = local(self.parameters.items())
        moves = {name: self.weights[name] for name, w in self.parameters.items() if w.requires_grad}
        shares = {name: self.train.layer_decay ** tune.distance(name, config) for name in moves}
        muon = matrices(self.model) if self.train.optimizer == "muon" else {}
        self.optimizer = Optimizer(moves, self.train, shares, muon)
        self.average = {n: w.detach().clone() for n, w in self.weights.items()} if self.train.ema else {}
        # On the device: loss, predictions, updates skipped since the last line; skipped in a row; skipped in all.
        self.sums = torch.zeros(5, dtype=torch.float64, device=self.device)
        self.last_norm = torch.zeros((), device=self.device)
        self.signal = 0  # that asked for an end; every process hears of it, beside the loss
        self.asked: list[Tensor] = []  # of several processes: whether any was asked to stop, step by step

    def _compile(self, objective: nn.Module, one_shape: bool) -> None:
        """Packed batches, and images, have one shape: model and loss are compiled whole, recorded and replayed. Padded
        ones have many, and shards come together block by block: then the blocks are compiled, one for all."""
        if one_shape and not self.world.shard:
            self.replays = self.device.type == "cuda"
            objective.forward = compiled(objective.forward, self.device, dynamic=False)  # type: ignore[method-assign]
            return
        for block in objective.modules():
            if isinstance(block, Block):
                block.compile(dynamic=not one_shape)

    # -- the step ----------------------------------------------------------------------

    def step(self, update: Update) -> None:
        """One update. Losses are sums, divided by what the whole batch asks for: parts and processes add up to it."""
        self._clear(keep=len(update.parts) > 1)
        share = self.world.size / max(update.size.wanted, 1)  # the engines average over processes
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for i, batch in enumerate(self.together(update)):
            with self.world.sharing(self.objective, last=i + 1 == len(update.parts)):
                with self._part(update, i):
                    loss = self.objective(batch.to(self.device))
                (loss * share).backward()
            total += loss.detach()
        self._localise()
        norm = self._norm()
        finite = norm.isfinite() & self._share(total).isfinite()
        self.optimizer.update(learning_rate(self.train, update.step), norm, finite)
        if self.task == "match":
            with torch.no_grad():  # CLIP's bound, within which the scale has a gradient: beyond, it could not come back
                self.weights["head.log_scale"].clamp_(max=math.log(99.99))
        if self.average:
            get_ema_multi_avg_fn(self.train.ema)(list(self.average.values()), list(self.weights.values()), None)
        self._count(total, update.size.wanted, norm, finite)

    @contextlib.contextmanager
    def _part(self, update: Update, i: int) -> Iterator[None]:
        """Within, a part of an update is computed: with random numbers of its own, in the precision of the run."""
        torch.manual_seed(int(draws(self.train.seed, update.step, i, self.world.rank) >> np.uint64(1)))
        if self.replays:
            torch.compiler.cudagraph_mark_step_begin()
        with self._autocast():
            yield

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    @torch.no_grad()
    def together(self, update: Update) -> list[Batch]:
        """The parts of an update. Of pairs of images and texts, each with what those of all parts and processes look
        like, so that it can be held against them (after GradCache, Gao et al. 2021)."""
        parts, n = update.parts, len(update.parts)
        if self.task != "match" or n * self.world.size == 1:
            return parts
        room = math.ceil(update.size.wanted / (n * self.world.size))
        found: list[Tensor] = []
        for i, batch in enumerate(parts):
            with self._part(update, i):  # with the dropout that it will have
                first, text, real = self.objective(batch.to(self.device), looks=True)
            rows = torch.cat([first, text, real[:, None].to(first.dtype)], 1)
            found.append(nn.functional.pad(rows, (0, 0, 0, room - len(rows))))
        whole = self.world.gather(torch.cat(found))
        width = whole.shape[1] // 2
        beside = Vectors(whole[:, :width], whole[:, width:-1], whole[:, -1] > 0)
        begin = self.world.rank * n
        return [batch._replace(beside=beside, place=torch.tensor((begin + i) * room)) for i, batch in enumerate(parts)]

    def _localise(self) -> None:
        """Under FSDP the optimizer works on this process's shards, and so on their gradients."""
        if self.world.shard:
            for name, weight in self.parameters.items():
                if weight.grad is not None:
                    self.weights[name].grad = weight.grad.to_local()  # type: ignore[attr-defined]

    def _share(self, total: Tensor) -> Tensor:
        """The loss over all processes, in place; beside it goes whether any of them was asked to stop."""
        if self.world.size > 1:
            both = self.world.sum(torch.stack([total, torch.full_like(total, float(self.signal != 0))]))
            total.copy_(both[0])
            self.asked.append(both[1])
        return total

    def _norm(self) -> Tensor:
        norm = nn.utils.get_total_norm(self.optimizer.gradients())
        return self.world.sum(norm**2).sqrt() if self.world.shard else norm

    def _clear(self, keep: bool = False) -> None:
        """Forget the gradients. Where several parts add up, they do so in memory of its own, not a recorded graph's."""
        for weight in (*self.parameters.values(), *self.optimizer.weights.values()):
            if not keep or self.world.shard or not weight.requires_grad:
                weight.grad = None
            elif weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        if keep and not self.world.shard:
            self.optimizer.clear()

    def _count(self, total: Tensor, wanted: int, norm: Tensor, finite: Tensor) -> None:
        """Keep the books on the device; nothing is read here."""
        bad = (~finite).double()
        now = torch.stack([torch.where(finite, total, 0), finite * wanted, bad, bad, bad])
        self.sums[3] *= bad  # in a row
        self.sums += now
        self.last_norm = norm

    # -- the model in between ------------------------------------------------------------

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        self.objective.eval()
        try:
            with torch.no_grad(), self._autocast():
                yield
        finally:
            self.objective.train()

    @contextlib.contextmanager
    def decoding(self) -> Iterator[None]:
        """Within, the model can write: its weights are whole, and nothing is compiled anew for every length."""
        eager = torch.compiler.set_stance("force_eager") if self.compiles else contextlib.nullcontext()
        with self.evaluating(), self.world.whole(self.objective), eager:
            yield

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Within, the weights are their moving average, if one is kept."""
        if not self.average:
            yield
            return
        kept = {name: w.detach().clone() for name, w in self.weights.items()}
        self.put(self.average)
        try:
            yield
        finally:
            self.put(kept)

    @torch.no_grad()
    def put(self, values: dict[str, Tensor]) -> None:
        for name, weight in self.weights.items():
            weight.copy_(values[name])

    # -- kept and taken up again ---------------------------------------------------------

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """All that the next update depends on, whole: (file, name, value). Every process must ask for all of it."""
        for file, weights in (("weights", self.weights), ("ema", self.average)):
            for name, value in weights.items():
                yield file, name, gathered(value, self.parameters[name])
        for what, name, value in self.optimizer.state():
            yield "optimizer", f"{what}.{name}", value if what == "step" else gathered(value, self.parameters[name])

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Stand where the tensors were kept, by file and name."""
        for weights, values in ((self.weights, tensors["weights"]), (self.average, tensors.get("ema", {}))):
            for name, weight in weights.items():
                weight.copy_(scattered(values[name], self.parameters[name]))
        state: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.get("optimizer", {}).items():
            what, _, name = key.partition(".")
            like = self.parameters[name]
            state.setdefault(what, {})[name] = value if what == "step" else scattered(value, like)
        self.optimizer.load(state)
