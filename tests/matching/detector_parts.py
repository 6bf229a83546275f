"""Detectors of transformers' real classes with tiny random weights, saved as the published ones are."""

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


def sam3(folder: Path) -> None:
    """SAM 3."""
    from transformers import Sam3Config, Sam3ImageProcessor, Sam3Model, Sam3Processor

    torch.manual_seed(0)
    detr = {"hidden_size": 32, "num_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    backbone = {
        "model_type": "sam3_vit_model",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 112,
        "patch_size": 14,
        "pretrain_image_size": 112,
        "window_size": 4,
        "global_attn_indexes": [1],
    }
    config = Sam3Config(
        vision_config={
            "backbone_config": backbone,
            "fpn_hidden_size": 32,
            "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        },
        text_config=TEXT | {"max_position_embeddings": 32},
        geometry_encoder_config=detr,
        detr_encoder_config=detr,
        detr_decoder_config=detr | {"num_queries": 5},
        mask_decoder_config={"hidden_size": 32, "num_attention_heads": 2},
    )
    Sam3Model(config).save_pretrained(folder)
    images = Sam3ImageProcessor(size={"height": 112, "width": 112})
    Sam3Processor(images, clip_tokenizer(32, "<pad>")).save_pretrained(folder)
