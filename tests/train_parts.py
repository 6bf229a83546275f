"""A small recipe for the tests of training, also run as a program by those that kill or copy processes.

python -m tests.train_parts OUT [--steps N] [--workers N] [--save-every N] [--pause S] [--start N]
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pandas import DataFrame
from PIL import Image
from torch import Tensor, nn

from idmetric import Backbone
from idmetric.data.manifest import read, write
from idmetric.evaluate.settings import option
from idmetric.train.gradcache import cached_backward
from idmetric.train.loop import TrainError, TrainSettings, fit
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe
from tests.table_parts import a_row, a_table

TINY = {"embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 16, "patch_size": 8}


@dataclass(frozen=True)
class Config:
    seed: int = option(0, "of everything")
    steps: int = option(12, "steps of the optimizer")
    batch_size: int = option(8, "pairs per step (section 4.1)")
    chunk: int = option(3, "pairs embedded at once")
    dropout: float = option(0.1, "in the encoder, 10% of it")
    noise: float = option(1e-3, "change of the first views")
    lr: float = option(3e-3, "peak learning rate")
    pause: float = option(0.0, "seconds that loading takes")
    poison: int = option(-1, "step whose batch holds a NaN")
    missing: int = option(-1, "step whose batch cannot be loaded")
    optimizer: Literal["adamw", "sgd"] = option("adamw", "of all parameters")
    sizes: tuple[int, ...] = option((16, 16), "of the pictures")
    symmetric: bool = option(False, "nothing")


@contextlib.contextmanager
def a_minute_offline() -> Iterator[None]:
    """Nothing outside can be reached inside, and no more than a minute of processor time may pass.

    (The clock would count other work, too.)
    """

    def refuse(*_: Any) -> Any:
        raise OSError("there is no network here")

    plain, start = socket.socket.connect, time.process_time()
    socket.socket.connect = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        socket.socket.connect = plain  # type: ignore[method-assign]
    assert time.process_time() - start < 60


def read_log(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The numbers of a log.jsonl by name ("loss", "validation/map"): steps and values."""
    series: dict[str, list[tuple[int, float]]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(text)
        numbers = record.pop("validation", None)
        step = record.pop("step")
        found = record if numbers is None else {f"validation/{k}": v for k, v in numbers.items()}
        for name, value in found.items():
            if isinstance(value, int | float):
                series.setdefault(name, []).append((step, value))
    return series


SMOKE = {"steps": 2, "validate_every": 1}


class Temperature(nn.Module):
    """A learnable temperature, and a buffer that changes with each use."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(-1.0))
        self.register_buffer("uses", torch.zeros((), dtype=torch.long))
        self.uses: Tensor

    def forward(self, pairs: Tensor) -> dict[str, Tensor]:
        self.uses += 1
        a, b = pairs.unbind(1)
        logits = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / self.log.exp()
        return {"loss": F.cross_entropy(logits, torch.arange(len(a)))}


class Pairs(NamedTuple):
    """Two views of each row's color."""

    a: Tensor
    b: Tensor
    rows: list[int]


class PairRecipe(Recipe):
    """A tiny ViT that learns to distinguish noisy colors: InfoNCE with a learnable temperature, dropout, caching."""

    name, best = "pairs", "accuracy"

    def __init__(self, config: Config, processes: Processes) -> None:
        torch.manual_seed(config.seed)
        self.config, self.processes = config, processes
        self.settings: Mapping[str, Any] = {
            k: v for k, v in asdict(config).items() if k not in ("pause", "missing", "poison")
        }
        self.steps = config.steps
        self.model = Backbone(
            "vit_tiny_patch16_224", pretrained=False, image_size=16, device=processes.device,
            backbone_args={**TINY, "proj_drop_rate": config.dropout},
        )  # fmt: skip
        self.model.backbone.blocks.requires_grad_(True)
        self.model.train()
        self.loss = Temperature().to(processes.device)

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "loss": self.loss}

    def optimizer(self) -> torch.optim.Optimizer:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        slow = {"params": self.loss.parameters(), "lr": self.config.lr / 10}
        if self.config.optimizer == "sgd":
            return torch.optim.SGD([{"params": trained}, slow], lr=self.config.lr, momentum=0.9)
        return torch.optim.AdamW([{"params": trained}, slow], lr=self.config.lr)

    def lr_factor(self, step: int) -> float:
        return min(1.0, (step + 1) / 4)

    def load(self, step: int) -> Pairs:
        if step == self.config.missing and self.rank == self.count - 1:
            raise FileNotFoundError("lost.png: the file does not exist")
        time.sleep(self.config.pause)
        rng = np.random.default_rng([self.config.seed, step])
        rows = rng.permutation(64)[: self.config.batch_size]
        colors = np.random.default_rng(1).random((64, 3, 1, 1))[rows]
        views = [torch.from_numpy((colors + rng.normal(0, 0.02, (len(rows), 3, 16, 16))).clip(0, 1)) for _ in "ab"]
        share = slice(self.rank * len(rows) // self.count, (self.rank + 1) * len(rows) // self.count)
        noise = torch.rand(()) * self.config.noise  # the global generator: follows from the step as well
        a = views[0][share].float() * (1 - noise)
        if step == self.config.poison:
            a = a * float("nan")
        return Pairs(a, views[1][share].float(), rows[share].tolist())

    @property
    def rank(self) -> int:
        return int(os.environ.get("RANK", 0))

    @property
    def count(self) -> int:
        return int(os.environ.get("WORLD_SIZE", 1))

    def step(self, batch: Pairs) -> dict[str, float | Tensor]:
        batch = self.processes.place(batch)
        starts = range(0, len(batch.a), self.config.chunk)
        chunks = [(batch.a[i : i + self.config.chunk], batch.b[i : i + self.config.chunk]) for i in starts]
        found = cached_backward(self.encode, chunks, self.loss, self.processes)
        return {**found, "temperature": self.loss.log.exp(), "images": 2 * len(batch.a)}

    def encode(self, chunk: tuple[Tensor, Tensor]) -> Tensor:
        return torch.stack([self.model.embed_pixels(x).cls for x in chunk], 1)

    def validate(self) -> dict[str, float]:
        self.model.eval()
        pairs = PairRecipe.load(self, 10_000)
        with torch.no_grad():
            a, b = (F.normalize(self.model(x.to(self.model.device)).cls, dim=1) for x in (pairs.a, pairs.b))
        hits = (a @ b.T).argmax(1) == torch.arange(len(a), device=a.device)
        return {"accuracy": hits.float().mean().item()}


def smoke_data(folder: Path) -> DataFrame:
    """Two pictures of each of four identities."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for k in range(8):
        Image.new("RGB", (16, 16), (k * 30, 0, 90)).save(folder / f"{k}.png")
        rows.append(a_row(identity=f"i{k // 2}", path=f"{k}.png"))
    write(a_table(rows, folder), folder / "manifest.parquet")
    return read(folder / "manifest.parquet")


def build(config: Config, data: DataFrame, processes: Processes) -> PairRecipe:
    recipe = PairRecipe(config, processes)
    recipe.settings = {**recipe.settings, "rows": len(data)}
    return recipe


def start(out: Path, config: dict[str, Any], settings: dict[str, Any], rank: int = 0, port: str = "") -> None:
    """Train in a new process, with a port as one of two; its output and errors go to out-RANK.txt next to `out`."""
    os.setsid()  # so that a test can signal this process and its loaders together
    if port:
        launched(rank, port)
    torch.set_num_threads(1)
    with out.with_name(f"{out.name}-{rank}.txt").open("a") as said, contextlib.redirect_stdout(said):
        try:
            with contextlib.closing(Processes(cpu=True)) as processes:
                stopped = fit(PairRecipe(Config(**config), processes), out, TrainSettings(**settings), processes)
            if stopped is not None:
                print(stopped, flush=True)
                raise SystemExit(3)
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            raise SystemExit(3) from error
        finally:
            threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
            assert not any("gloo" in name for name in threads)  # they could abort the process while Python shuts down


def exchange(folder: Path, rank: int, port: str) -> None:
    """Write what one of two processes gets from the other, as JSON."""
    launched(rank, port)
    processes = Processes(cpu=True)
    own = torch.tensor([[10.0 * rank], [10.0 * rank + 1]], requires_grad=True)
    floats = processes.gather(own)
    floats.square().mean().backward()
    used, lonely, unused = (nn.Parameter(torch.zeros(())) for _ in range(3))
    used.grad = torch.tensor(2.0 * rank)
    lonely.grad = torch.tensor(6.0) if rank == 0 else None
    processes.average_gradients([used, lonely, unused])
    module = nn.Linear(1, 1)
    nn.init.constant_(module.weight, rank)
    nn.init.constant_(module.bias, rank)
    processes.copy_from_main(module.parameters())
    found: dict[str, Any] = {
        "floats": floats.tolist(),
        "gradient": own.grad.tolist() if own.grad is not None else None,
        "averages": [None if p.grad is None else p.grad.item() for p in (used, lonely, unused)],
        "any": processes.any(rank == 1, False),
        "copied": [module.weight.item(), module.bias.item()],
    }
    try:
        processes.on_main(lambda: int("x") if rank else _refuse())
    except (ValueError, TrainError) as error:
        found["failed"] = str(error)
    backend = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    found["patience"] = backend.options._timeout.total_seconds()
    (folder / f"exchange-{rank}.json").write_text(json.dumps(found))
    processes.close()


def _refuse() -> int:
    raise ValueError("no")


def launched(rank: int, port: str) -> None:
    """Set the environment as torchrun and `accelerate launch` do for one of two processes, with one thread each."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    torch.set_num_threads(1)


@contextlib.contextmanager
def killed_at(step: int, kind: type) -> Iterator[None]:
    """Within the block recipes of this class end before this step, counted from 0, as a killed process does."""
    plain = kind.lr_factor

    def lr_factor(self: Any, at: int) -> float:
        if at == step:
            raise KeyboardInterrupt
        return float(plain(self, at))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(kind, "lr_factor", lr_factor)
        yield


def same_results(one: Path, two: Path, *files: str) -> bool:
    """Whether two runs wrote the same model, checkpoint of their last step, and other files, bit for bit."""
    last = max((one / "checkpoints").iterdir()).name
    names = ("model.safetensors", f"checkpoints/{last}", *files)
    return all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def free_port() -> str:
    """A port on which two processes can meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def in_two_processes(
    target: Callable[..., None], *given: Any, meanwhile: Callable[[], Any] = lambda: None, seconds: float = 600
) -> list[int]:
    """Run `target(*given, rank, port)` as two processes that start without this one's state; return their exit codes.

    Args:
        meanwhile: called here while they run.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train_parts", target.__module__])
    port = free_port()
    group = [context.Process(target=target, args=(*given, rank, port)) for rank in (0, 1)]
    for process in group:
        process.start()
    meanwhile()
    for process in group:
        process.join(seconds)
    hanging = [process for process in group if process.is_alive()]
    for process in hanging:
        process.kill()
    assert not hanging, "the processes wait for each other"
    return [process.exitcode or 0 for process in group]


def picture(seed: int, width: int = 60, height: int = 44, blocks: tuple[int, int] = (6, 8)) -> Image.Image:
    """A picture of random soft blocks of color, rows by columns."""
    coarse = np.random.default_rng(seed).integers(0, 256, (*blocks, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
