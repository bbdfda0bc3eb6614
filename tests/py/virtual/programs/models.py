"""Models of transformers, small: two steps of training each. Each is run on a virtual GPU by
test_programs.py."""

import transformers as t

import torch

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**SMALL, "vocab_size": 99}
VISION = {**SMALL, "image_size": 64, "patch_size": 16}
STAGES = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
LAYERS = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


def _ids(batch=2, length=16):
    return torch.randint(0, 90, (batch, length)).cuda()


def _text():
    return {"input_ids": _ids(), "attention_mask": torch.ones(2, 16, dtype=torch.long).cuda(), "labels": _ids()}


def _images(**more):
    return {"pixel_values": torch.randn(2, 3, 64, 64).cuda(), **more}


def _labelled():
    return _images(labels=torch.randint(0, 2, (2,)).cuda())


def _train(name, config, batch):
    model = getattr(t, name)(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        out = model(**batch())
        loss = out.loss if getattr(out, "loss", None) is not None else out[0].mean()
        assert loss.is_cuda and loss.grad_fn is not None
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def gpt2_trains_and_generates():
    model = _train("GPT2LMHeadModel", t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99), _text)
    for options in ({}, {"do_sample": True, "top_k": 5, "top_p": 0.9}):
        found = model.generate(_ids(), max_new_tokens=4, pad_token_id=0, **options)
        assert found.shape == (2, 20) and found.is_cuda, (options, found.shape)
    assert model.generate(_ids(), max_new_tokens=4, pad_token_id=0, num_beams=2).size(0) == 2


def llama():
    _train("LlamaForCausalLM", t.LlamaConfig(**TEXT, num_key_value_heads=2), _text)


def mixtral():
    config = t.MixtralConfig(**TEXT, num_key_value_heads=2, num_local_experts=4, output_router_logits=True)
    for implementation in ("eager", "grouped_mm"):
        config._experts_implementation = implementation
        _train("MixtralForCausalLM", config, _text)


def deepseek_v3():
    config = t.DeepseekV3Config(
        **TEXT,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=32,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=1,
    )
    _train("DeepseekV3ForCausalLM", config, _text)


def switch_transformers():
    config = t.SwitchTransformersConfig(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, num_experts=4, vocab_size=99, decoder_start_token_id=0
    )
    _train("SwitchTransformersForConditionalGeneration", config, _text)


def mamba():
    _train("MambaForCausalLM", t.MambaConfig(**TEXT, state_size=4), _text)


def bert():
    _train("BertForMaskedLM", t.BertConfig(**TEXT), _text)


def deberta():
    config = t.DebertaV2Config(**TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
    _train("DebertaV2ForMaskedLM", config, _text)


def longformer():
    _train("LongformerForMaskedLM", t.LongformerConfig(**TEXT, attention_window=[4, 4], pad_token_id=1), _text)


def t5():
    config = t.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=99, decoder_start_token_id=0)
    _train("T5ForConditionalGeneration", config, _text)


def resnet():
    _train(
        "ResNetForImageClassification", t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]), _labelled
    )


def regnet():
    config = t.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8)
    _train("RegNetForImageClassification", config, _labelled)


def mobilenet():
    _train("MobileNetV2ForImageClassification", t.MobileNetV2Config(image_size=64, depth_multiplier=0.35), _labelled)


def convnext():
    _train("ConvNextForImageClassification", t.ConvNextConfig(**STAGES), _labelled)


def swin():
    _train(
        "SwinForImageClassification",
        t.SwinConfig(image_size=64, embed_dim=16, depths=[1, 2], num_heads=[2, 4]),
        _labelled,
    )


def masked_autoencoder():
    config = t.ViTMAEConfig(
        **VISION,
        decoder_hidden_size=32,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=32,
    )
    _train("ViTMAEForPreTraining", config, _images)


def segformer():
    labels = torch.randint(0, 2, (2, 64, 64)).cuda()
    _train(
        "SegformerForSemanticSegmentation",
        t.SegformerConfig(**STAGES, decoder_hidden_size=16),
        lambda: _images(labels=labels),
    )


def clip():
    config = t.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=16)
    _train("CLIPModel", config, lambda: _images(input_ids=_ids(), return_loss=True))


def llava():
    config = t.LlavaConfig(
        text_config=t.LlamaConfig(**TEXT, num_key_value_heads=2),
        vision_config=t.CLIPVisionConfig(**VISION),
        image_token_index=98,
        vision_feature_layer=-1,
    )
    ids = torch.randint(0, 90, (2, 40))
    ids[:, 2:18] = 98
    _train("LlavaForConditionalGeneration", config, lambda: _images(input_ids=ids.cuda(), labels=ids.cuda()))


def wav2vec2_with_ctc():
    config = t.Wav2Vec2Config(
        **SMALL,
        vocab_size=32,
        conv_dim=(8, 8, 8),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        mask_time_length=2,
    )
    mask, labels = torch.ones(2, 4000, dtype=torch.long).cuda(), torch.randint(1, 32, (2, 10)).cuda()
    _train(
        "Wav2Vec2ForCTC",
        config,
        lambda: {"input_values": torch.randn(2, 4000).cuda(), "attention_mask": mask, "labels": labels},
    )


def whisper():
    config = t.WhisperConfig(
        **LAYERS,
        vocab_size=99,
        max_source_positions=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    _train(
        "WhisperForConditionalGeneration",
        config,
        lambda: {"input_features": torch.randn(2, 80, 100).cuda(), "labels": _ids()},
    )
