"""Models that the tools of Hugging Face take: configs and models for the Auto classes, caches for `generate`,
conversion, and other models with their attention replaced.

It needs the extra `hf`, transformers 5 from 5.22 on. Importing it registers the models, so that
`AutoModelForCausalLM.from_pretrained` knows the folders that `save_pretrained` wrote.
"""

from resolvent.hf.versions import require_transformers

require_transformers()

from resolvent.hf.cache import MixerCacheLayer  # noqa: E402
from resolvent.hf.config import ResolventConfig  # noqa: E402
from resolvent.hf.convert import convert, from_language_model, to_language_model  # noqa: E402
from resolvent.hf.model import ResolventForCausalLM, ResolventModel  # noqa: E402
from resolvent.hf.replace import (  # noqa: E402
    ReplacedGPT2Config,
    ReplacedGPT2LMHeadModel,
    ReplacedLlamaConfig,
    ReplacedLlamaForCausalLM,
    replace_attention,
)

__all__ = [
    "MixerCacheLayer",
    "ReplacedGPT2Config",
    "ReplacedGPT2LMHeadModel",
    "ReplacedLlamaConfig",
    "ReplacedLlamaForCausalLM",
    "ResolventConfig",
    "ResolventForCausalLM",
    "ResolventModel",
    "convert",
    "from_language_model",
    "replace_attention",
    "to_language_model",
]
