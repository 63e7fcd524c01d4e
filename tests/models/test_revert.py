"""What is reverted to the plain model only where a loss is asked for."""

import pytest
from tiny_models import text_config
from transformers import LlamaForCausalLM

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM, revert


@pytest.mark.parametrize(
    ("residual", "words"),
    [
        ("scaled_embedding:scale=50", r"'scaled_embedding' is no ordinary residual: lossy takes"),
        ("highway", r"'highway' is no ordinary residual: lossy takes"),
        ("window:n_last=2", r"'window' is no ordinary residual: lossy takes"),
        ("delta:n_blocks=2", r"without scaled_norm_eps .*lossy"),
    ],
)
def test_a_method_of_another_function_is_reverted_only_with_loss(residual, words):
    config = AttnResCausalLMConfig(text_config=text_config(), residual=residual)
    model = AttnResForCausalLM(config)
    with pytest.raises(ValueError, match=words):
        revert(model)
    assert type(revert(model, lossy=True)) is LlamaForCausalLM
