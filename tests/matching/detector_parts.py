"""A detector of transformers' real class with tiny random weights, saved as the published ones are."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.diffusion_parts import clip_tokenizer

TEXT = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 200,
    "bos_token_id": 1,  # to OWLv2, a text that begins with 0 is padding
    "eos_token_id": 2,
    "pad_token_id": 2,
    "projection_dim": 16,
}


def owlv2(folder: Path) -> None:
    """OWLv2."""
    from transformers import Owlv2Config, Owlv2ForObjectDetection, Owlv2ImageProcessor, Owlv2Processor

    torch.manual_seed(0)
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 64,
        "patch_size": 16,
    }
    text = TEXT | {"max_position_embeddings": 40}
    config = Owlv2Config(text_config=text, vision_config=vision, projection_dim=16)
    model = Owlv2ForObjectDetection(config)
    for parameter in model.parameters():  # so that scores and boxes differ
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    images = Owlv2ImageProcessor(size={"height": 64, "width": 64})
    Owlv2Processor(images, clip_tokenizer(40, "<pad>")).save_pretrained(folder)
