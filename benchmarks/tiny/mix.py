"""Weights on the way from ImageNet to a training's end: what IDSim("tiny") is chosen from, side by side.

    python benchmarks/tiny/mix.py DATA OUT --mix 1,1,1,1,1 0.4,1,0.8,0.6,1
    python benchmarks/tiny/mix.py DATA OUT --mix 1,1,1,1,1 1,1,1,1,1+0.5,0.5,0.5,0.5@0.4@192

A mix EARLY,FOUR,FIVE,LAST,PATCH is written to OUT as a model folder. Of the way that training went (WiSE-FT, Wortsman
et al. 2022, Eq. 1), it goes the share EARLY with stem and stages 0 to 3, FOUR and FIVE with these stages, LAST with
what follows and the head of the global feature, PATCH with the head of the patch tokens. An "s" behind it estimates
BatchNorm's statistics again, on DATA/train. A second mix behind a "+", of an EfficientNet-Lite2, stands beside the
first, with the share and the input size behind "@"; both in int8, with BatchNorm in their convolutions, as the package
has them.

DATA holds manifest.csv with the splits "dev" and "dev2", whose datasets all count alike: the mix of the best mean is
chosen, "worst" is the largest loss of a dataset compared with the first row. SSR is that of rendered distractors by
strength, matches are those on the subject (photos, rendered). The trained weights come from this repository's history.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from pair import write_pair
from start import PARTS, freeze_statistics, mixed
from torch import nn
from train import WEIGHTS, earlier
from world import protocol
from world.protocol import WorldOptions
from world.rendered import rendered_objects

from idmetric.data.manifest.table import Manifest, read
from idmetric.evaluate.protocols import folder, matches
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.metric.models.idsim import IDSim

# commits and folders with the weights that training ended with
SPLITS = ("dev", "dev2")  # of the photos, in the order of their age
TRAINED = ("a76cbfe", WEIGHTS)
LITE2 = ("490ffaf", "benchmarks/tiny/lite2")


@torch.no_grad()
def estimate_statistics(model: IDSim, images: Sequence[str], batch_size: int = 64) -> None:
    """BatchNorm's means and variances over images, each batch counting alike."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    for begin in range(0, len(order) - batch_size + 1, batch_size):
        model.embed([images[k] for k in order[begin : begin + batch_size]], batch_size=batch_size, patches=False)
    freeze_statistics(model)


def write(spec: str, trained: IDSim, out: Path, images: Sequence[str]) -> IDSim:
    """The mix in its folder, and read back; one model in half precision."""
    folder = out / spec.replace(",", "-")
    if not (folder / "model.safetensors").is_file():
        own, _, other = spec.partition("+")
        model = mixed(trained, shares_of(own.removesuffix("s")))
        if own.endswith("s"):
            estimate_statistics(model, images)
        if other:
            shares, share, size = other.split("@")
            second = IDSim(earlier(*LITE2, out / "lite2"), device="cpu", dtype=torch.float32)
            write_pair(model, mixed(second, shares_of(f"{shares},0")), int(size), float(share), folder)
        else:
            model.half().save_pretrained(folder)
    return IDSim(folder, device="cpu", dtype=torch.float32)


def shares_of(spec: str) -> dict[str, float]:
    """The shares that a mix names."""
    return dict(zip(PARTS, map(float, spec.split(",")), strict=True))


def values(result: Result, column: str, **of: str) -> dict[str, float]:
    """A column's values by the rows' dataset or kind."""
    rows = [row for row in result.rows if all(row.get(key) == value for key, value in of.items())]
    found = {str(row.get("which") or row.get("dataset")): row.get(column) for row in rows}
    return {name: value.value for name, value in found.items() if isinstance(value, Value)}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with manifest.csv")
    parser.add_argument("out", type=Path, help="folder for the mixes, embeddings and rendered objects")
    parser.add_argument(
        "--mix", nargs="+", required=True, metavar="EARLY,FOUR,FIVE,LAST,PATCH[s][+EARLY,FOUR,FIVE,LAST@SHARE@SIZE]"
    )
    parser.add_argument("--photos-only", action="store_true", help="neither SSR nor matches")
    args = parser.parse_args(argv)

    trained = IDSim(earlier(*TRAINED, args.out / "trained"), device="cpu", dtype=torch.float32)
    data = read(args.data / "manifest.csv")
    images = [str(source) for source in data.filter(split="train").sources()]
    models = {spec: write(spec, trained, args.out, images) for spec in args.mix}
    settings = EvalSettings(bootstrap=0, store=args.out / "embeddings")

    parts = [folder.run(data.filter(split=split), models, settings) for split in SPLITS]
    found = [[values(result, "mAP") for result in results] for results in zip(*parts, strict=True)]
    rest = [[] for _ in models] if args.photos_only else others(args.out, data, models, settings)
    sets = [name for scores in found[0] for name in scores if name != "mean"]
    head = ["mix", *sets, "dev", "dev2", "all", "worst"] + ["SSR", "matches"] * (not args.photos_only)
    print("|", " | ".join(head), "|\n|" + "---|" * len(head))
    first: dict[str, float] = {}
    for spec, scores, more in zip(models, found, rest, strict=True):
        each = {name: value for part in scores for name, value in part.items() if name != "mean"}
        first = first or each
        worst = min(sets, key=lambda name: each[name] - first[name])
        numbers = [*each.values(), *(part["mean"] for part in scores), sum(each.values()) / len(each)]
        change = f"{worst} {each[worst] - first[worst]:+.3f}"
        print("|", " | ".join([spec, *(f"{number:.3f}" for number in numbers), change, *more]), "|")


def others(out: Path, data: Manifest, models: dict[str, IDSim], settings: EvalSettings) -> list[list[str]]:
    """SSR by strength and the share of matches on the subject, of each model."""
    bench = protocol.bench(out / "world", WorldOptions(grids=0))
    by_strength = [values(result, "SSR", bench="distractors") for result in protocol.run(bench, models, settings)]
    of_photos = matches.run(data.filter(split=SPLITS[0]), models, settings)
    of_things = matches.run(rendered_objects(out), models, settings)
    return [
        [
            ", ".join(f"{value:.2f}" for which, value in ssr.items() if which != protocol.ALL),
            ", ".join(f"{value:.3f}" for one in seen for value in values(one, "on subject").values()),
        ]
        for ssr, *seen in zip(by_strength, of_photos, of_things, strict=True)
    ]


if __name__ == "__main__":
    main()
