"""Encoders that text alone needs no weights of, and that it runs all the same."""

import pytest
import torch
from support.engine import make_engine, score
from support.models import random_plan

from scoremode.errors import UnsupportedModel


def test_an_encoder_that_text_alone_runs_is_refused(tmp_path, monkeypatch):
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    text = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 101}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    text |= {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    }
    fields = {"model_type": "qwen3_vl", "text_config": text, "tie_word_embeddings": False}
    fields["vision_config"] = {"depth": 2, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32}
    fields["vision_config"] |= {"intermediate_size": 32, "deepstack_visual_indexes": [0]}
    fields["image_token_id"] = fields["video_token_id"] = 100
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForImageTextToText.from_config(config)
    model.save_pretrained(tmp_path)
    whole = Qwen3VLModel.forward

    def looking(self, *args, **kwargs):
        self.visual(torch.zeros(4, 1536), torch.tensor([[1, 2, 2]]))
        return whole(self, *args, **kwargs)

    assert score(make_engine(tmp_path), random_plan()).logprob.shape
    monkeypatch.setattr(Qwen3VLModel, "forward", looking)
    with pytest.raises(UnsupportedModel, match=r"its forward runs model\.visual for text alone"):
        make_engine(tmp_path)
