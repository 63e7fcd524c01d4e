"""Causal LMs: the sublayers of a transformers model, joined by a residual method."""

try:
    import transformers
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"attnres.models needs {error.name}: pip install 'attention-residuals[hf]'"
    ) from error

# 5.24 renamed the KV cache; with the other name a model generates nonsense without an error
if not (5, 24) <= tuple(map(int, transformers.__version__.split(".")[:2])) < (6,):
    raise ImportError(
        f"attnres.models needs transformers>=5.24,<6, found {transformers.__version__}: "
        "pip install 'attention-residuals[hf]'"
    )

from attnres.models.causal_lm import AttnResForCausalLM
from attnres.models.config import AttnResCausalLMConfig
from attnres.models.convert import change_form, convert, revert
from attnres.models.exchange import NamedLoad, export_named, load_named
from attnres.models.names import residual_from_named, residual_to_named
from attnres.models.self_test import ConversionReport, ReadHazard, self_test

__all__ = [
    "AttnResCausalLMConfig",
    "AttnResForCausalLM",
    "ConversionReport",
    "NamedLoad",
    "ReadHazard",
    "change_form",
    "convert",
    "export_named",
    "load_named",
    "residual_from_named",
    "residual_to_named",
    "revert",
    "self_test",
]
