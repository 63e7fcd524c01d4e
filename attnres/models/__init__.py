"""Causal LMs: the sublayers of a transformers model, joined by a residual method."""

try:
    from attnres.models.causal_lm import AttnResForCausalLM
    from attnres.models.config import AttnResCausalLMConfig
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"attnres.models needs {error.name}: pip install 'attention-residuals[hf]'"
    ) from error

__all__ = ["AttnResCausalLMConfig", "AttnResForCausalLM"]
