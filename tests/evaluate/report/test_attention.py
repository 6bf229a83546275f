from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from idmetric import Backbone, IDSim, NearID
from idmetric.evaluate.report.attention import attention_maps, pooling_attention
from tests.metric.models.test_nearid import SMALL, official

EXAMPLES = Path(__file__).parents[3] / "examples" / "images"
PREFIX = "backbone.vision_model.head."


def by_hand(tokens: Tensor, weights: dict[str, Tensor], heads: int) -> Tensor:
    """Attention of the published head, (heads, N): one probe, one query, a key for each token, one at a time."""
    width = tokens.shape[1]
    each = width // heads
    matrix, bias = weights["attention.in_proj_weight"].double(), weights["attention.in_proj_bias"].double()
    query = matrix[:width] @ weights["probe"][0, 0].double() + bias[:width]
    keys = [matrix[width : 2 * width] @ token.double() + bias[width : 2 * width] for token in tokens]
    rows = []
    for head in range(heads):
        part = slice(head * each, (head + 1) * each)
        powers = [math.exp(float(query[part] @ key[part]) / math.sqrt(each)) for key in keys]
        rows.append([power / sum(powers) for power in powers])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture
def published(tmp_path: Path) -> tuple[Any, NearID, dict[str, Tensor]]:
    """Transformers' model, ours of the same file, and the weights of the head."""
    model = official(tmp_path, {**SMALL, "image_size": 112})
    state = load_file(tmp_path / "model.safetensors")
    head = {key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)}
    return model, NearID(tmp_path, device="cpu"), head


def test_attention_is_that_of_the_heads_weights(published: tuple[Any, NearID, dict[str, Tensor]]) -> None:
    model, metric, head = published
    x = torch.rand(2, 3, 112, 112)
    with torch.no_grad():
        tokens = model((x - 0.5) / 0.5).last_hidden_state
        _, theirs = model.head.attention(
            model.head.probe.repeat(2, 1, 1), tokens, tokens, need_weights=True, average_attn_weights=False
        )
    found = torch.stack([pooling_attention(metric, image)[0] for image in x])
    assert found.shape == (2, 4, 64)
    for k in range(2):
        torch.testing.assert_close(found[k].double(), by_hand(tokens[k], head, 4), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found, theirs[:, :, 0], atol=1e-6, rtol=1e-4)
    assert found.amax(-1).min() > 1.3 / 64  # or a flat map would pass, too


def test_maps_are_the_shares_that_the_embedding_was_pooled_with(
    published: tuple[Any, NearID, dict[str, Tensor]],
) -> None:
    _, metric, head = published
    x = torch.rand(3, 112, 112)  # 8 x 8 patches of 14 pixels
    embedded = metric.embed(x)
    with torch.no_grad():
        tokens = metric.backbone.forward_features((x[None] - 0.5) / 0.5)[0]
    shares = by_hand(tokens, head, 4)
    for number, expected in ((None, shares.mean(0)), (2, shares[2])):
        [heat] = attention_maps(metric, x, head=number)
        assert heat.shape == (112, 112)
        centers = heat[7::14, 7::14] + heat[6::14, 6::14] + heat[6::14, 7::14] + heat[7::14, 6::14]
        torch.testing.assert_close(centers.flatten().double() / 4, expected, atol=2e-3, rtol=0.1)
        assert int(centers.argmax()) == int(expected.argmax())

    # pooled with these shares, the values give the model's embedding
    width, each = 48, 12
    matrix, bias = head["attention.in_proj_weight"].double(), head["attention.in_proj_bias"].double()
    values = (tokens.double() @ matrix[2 * width :].T + bias[2 * width :]).unflatten(1, (4, each))
    mixed = torch.einsum("hn,nhd->hd", shares, values).flatten()
    out = head["attention.out_proj.weight"].double() @ mixed + head["attention.out_proj.bias"].double()
    normed = F.layer_norm(out, (width,), head["layernorm.weight"].double(), head["layernorm.bias"].double(), 1e-6)
    hidden = head["mlp.fc1.weight"].double() @ normed + head["mlp.fc1.bias"].double()
    hidden = F.gelu(hidden, approximate="tanh")
    out = out + head["mlp.fc2.weight"].double() @ hidden + head["mlp.fc2.bias"].double()
    torch.testing.assert_close(F.normalize(out, dim=0), embedded.cls[0].double(), atol=1e-5, rtol=1e-4)


def test_siglip_has_such_maps_and_others_are_refused(published: tuple[Any, NearID, dict[str, Tensor]]) -> None:
    _, metric, _ = published
    image = EXAMPLES / "mug_a.png"
    paths = [image, EXAMPLES / "box_a.png"]
    for path, heat in zip(paths, attention_maps(metric, paths), strict=True):
        assert heat.shape == Image.open(path).size[::-1]
    args = {"embed_dim": 48, "depth": 1, "num_heads": 4}
    options: dict[str, Any] = {"pretrained": False, "image_size": 64, "resize": "squash", "backbone_args": args}
    siglip = Backbone("vit_base_patch16_siglip_224", device="cpu", **options)
    [heat] = attention_maps(siglip, image)
    assert heat.std() > 0
    mean = Backbone("vit_base_patch16_siglip_224", device="cpu", pool="avg", **options)
    for other in (mean, IDSim("tiny", device="cpu")):
        with pytest.raises(ValueError, match="does not pool its patches by attention"):
            attention_maps(other, image)
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        attention_maps(metric, image, head=4)
