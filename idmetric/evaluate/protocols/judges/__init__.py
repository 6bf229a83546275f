"""Multimodal language models as judges of identity."""
