"""One process or many: what they share, and how a model is spread over them. The model's files know nothing of it.

Started by ``torchrun``, every process takes part of each batch, and the gradients are added up: whole copies of the
model (DistributedDataParallel), or a shard of every weight each (FSDP2). A part's loss is divided by what the whole
batch asks for, so that n processes do what one would.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.config import InputError
from regard.nn.blocks import Block


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them."""

    rank: int
    size: int
    device: torch.device
    shard: bool = False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    @classmethod
    def join(cls, device: str | None = None, *, shard: bool = False) -> World:
        """Meet the other processes, if torchrun started any.

        >>> World.join("cpu").size
        1
        """
        kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if kind.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"device ({kind!r}): no GPU is to be seen here; use --device cpu")
        if kind.partition(":")[0] not in ("cpu", "cuda"):
            raise InputError(f"device ({kind!r}) must be cpu or cuda")
        where = torch.device(kind)
        if "RANK" not in os.environ:
            if shard:
                raise InputError(
                    "--shard needs several processes; start with torchrun --nproc-per-node N -m regard ..."
                )
            return cls(0, 1, where)
        if where.type == "cuda":
            where = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(where)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
        return cls(dist.get_rank(), dist.get_world_size(), where, shard)

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def wrap(self, objective: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        """The module whose calls share their gradients with the other processes; ``dtype`` is what products are in."""
        if self.shard:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

            mesh = init_device_mesh(self.device.type, (self.size,))
            # Gathered as products take them: autocast would keep a copy of each beside what was gathered.
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
            for module in objective.modules():
                if isinstance(module, Block):
                    fully_shard(module, mesh=mesh, mp_policy=policy)
                    register_fsdp_forward_method(module, "remember")  # decoding calls it beside forward
            fully_shard(objective, mesh=mesh, mp_policy=policy)
            return objective
        if self.size > 1:
            return nn.parallel.DistributedDataParallel(objective)
        return objective

    @contextlib.contextmanager
    def sharing(self, wrapped: nn.Module, last: bool) -> Iterator[None]:
        """Gradients are exchanged at the last part of an update alone."""
        if self.shard:
            wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]
        if self.size > 1 and not self.shard and not last:
            with wrapped.no_sync():  # type: ignore[operator]
                yield
        else:
            yield

    @contextlib.contextmanager
    def whole(self, wrapped: nn.Module) -> Iterator[None]:
        """Within, the model's methods can be called one by one: shards of what is outside the blocks are gathered."""
        if self.shard:
            wrapped.unshard()  # type: ignore[operator]
        yield
        if self.shard:
            wrapped.reshard()  # type: ignore[operator]

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def gather(self, value: Tensor) -> Tensor:
        """The rows of all processes, as many of each, one process after another."""
        if self.size == 1:
            return value
        found = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(found, value.contiguous())
        return torch.cat(found)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def local(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """This process's share of each weight, the same memory: what its optimizer works on."""
    with torch.no_grad():
        return {name: w.to_local() if _is_sharded(w) else w for name, w in weights}  # type: ignore[attr-defined]


def _is_sharded(weight: Tensor) -> bool:
    return hasattr(weight, "to_local")  # of the class that takes half a second to import


def gathered(value: Tensor, like: Tensor) -> Tensor:
    """The whole of a tensor that is held in shards as ``like`` is; every process must ask."""
    if not _is_sharded(like):
        return value
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    whole = DTensor.from_local(value, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
    return whole.full_tensor()


def scattered(value: Tensor, like: Tensor) -> Tensor:
    """This process's share of a whole tensor."""
    if not _is_sharded(like):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements).to_local()
