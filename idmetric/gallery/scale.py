"""A gallery built by many machines: Ray Data hands out its images, and each process embeds them into shared shards.

cluster = Cluster(lambda: IDSim("tiny"), gpus=1, cpus=4)
Gallery("index/", IDSim("tiny")).update("photos/", cluster=cluster)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.gallery.index import GalleryItem, Where, as_line, parse_item
from idmetric.gallery.read import Masking
from idmetric.gallery.sources import Entry, GalleryError
from idmetric.gallery.update import current_items
from idmetric.metric.files.hints import need
from idmetric.stream.keys import folder_name
from idmetric.stream.store import Store

if TYPE_CHECKING:
    from ray import ObjectRef

    from idmetric.metric.models.embedder import Embedder

__all__ = ["Cluster"]

BLOCK = 1024  # images that a process takes at a time; their embeddings are then in a shard


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that embeds the images of a gallery.

    Args:
        open_model: opens the gallery's model in each process.
        address: of the cluster ("auto": the one of this machine). None: the cluster of this process, or a new one.
        cpus, gpus: of each process. There are as many processes as the cluster has room for; threads that read images
            default to `cpus`.
    """

    open_model: Callable[[], Embedder]
    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    def current_items(
        self,
        store: Store,
        entries: Sequence[Entry],
        before: Mapping[Where, GalleryItem],
        masking: Masking,
        *,
        batch_size: int,
        workers: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> list[GalleryItem]:
        """Do on the cluster what `update.current_items` does in this process, with the same result.

        Raises:
            ImportError: without Ray.
            GalleryError: if the cluster has no room, gives up, has another model, or does not share the folder.
        """
        need("scale", "a cluster", ray="Ray")
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False  # `progress` is reported instead
        processes = self._connect()
        threads = max(1, round(self.cpus)) if workers is None else workers
        # all processes start at once, and none waits for a block that queues at another
        pool = ray.data.ActorPoolStrategy(
            min_size=1, max_size=processes, initial_size=processes, max_tasks_in_flight_per_actor=1
        )
        blocks = max(processes, math.ceil(len(entries) / BLOCK))
        positions = ray.data.from_items(list(range(len(entries))), override_num_blocks=blocks)
        shared = ray.put((entries, before))
        results = positions.map_batches(
            Worker,
            fn_constructor_args=(self.open_model, store.folder.absolute(), store.patches, masking, shared),
            fn_kwargs={"batch_size": batch_size, "workers": threads},
            batch_size=None,
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            compute=pool,
        )

        items: dict[int, GalleryItem] = {}
        try:
            for block in results.iter_batches(batch_size=None):
                for position, line in zip(block["position"], block["line"], strict=True):
                    items[int(position)] = parse_item(line)
                if progress is not None:
                    progress(len(items), len(entries))
        except ray.exceptions.RayError as error:
            cause = str(error).strip().splitlines()[-1]
            raise GalleryError(f"the cluster gave up ({cause}): run the command again to resume") from error

        embedded = {item.key for item in items.values() if not item.problem and item.key not in store}
        store.scan()
        if not all(key in store for key in embedded):
            raise GalleryError(f"the cluster's machines do not share {str(store.folder)!r}: name a folder that all see")
        store.added += len(embedded)
        return [items[position] for position in range(len(entries))]

    def _connect(self) -> int:
        """Connect to the cluster, and return for how many processes it has room."""
        import ray

        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no statistics
            ray.init(self.address, logging_level="WARNING")
        resources = ray.cluster_resources()
        room = []
        for kind, amount in {"CPU": self.cpus, "GPU": self.gpus}.items():
            if amount:
                room.append(int(resources.get(kind, 0) / amount))
        processes = min(room, default=1)
        if processes < 1:
            raise GalleryError(
                f"the cluster has no room for a process of {self.cpus:g} CPUs and {self.gpus:g} GPUs: ask for less"
            )
        return processes


class Worker:
    """Embeds blocks of images into shards; Ray Data opens one in each process."""

    def __init__(
        self,
        open_model: Callable[[], Embedder],
        folder: Path,
        patches: bool,
        masking: Masking,
        shared: ObjectRef[tuple[Sequence[Entry], Mapping[Where, GalleryItem]]],
    ) -> None:
        import ray

        self.metric = open_model()
        if folder_name(masking.about(self.metric)) != folder.name:
            raise GalleryError("the model on this machine differs from that of the gallery")
        self.store = Store(folder, patches)
        self.masking = masking
        self.entries, self.before = ray.get(shared)

    def __call__(self, block: dict[str, Any], batch_size: int, workers: int) -> dict[str, list[Any]]:
        """Return positions of images, and their lines in the list of the gallery."""
        positions = [int(position) for position in block["item"]]
        items = current_items(
            self.metric,
            self.store,
            [self.entries[position] for position in positions],
            self.before,
            self.masking,
            batch_size=batch_size,
            workers=workers,
        )
        self.store.save()
        return {"position": positions, "line": [as_line(item) for item in items]}
