"""What attention over depth costs: parameters, FLOPs, bytes and messages, without running it."""

from attnres.cost.counted import Counted, count
from attnres.cost.memory import prefill_bytes, source_bytes
from attnres.cost.messages import Messages, messages
from attnres.cost.methods import MethodCost, method_costs
from attnres.cost.recommend import Advice, recommend_for_bytes, recommend_for_traffic
from attnres.cost.schemes import Scheme, schemes
from attnres.cost.sizes import Sizes, decoder_sizes

__all__ = [
    "Advice",
    "Counted",
    "Messages",
    "MethodCost",
    "Scheme",
    "Sizes",
    "count",
    "decoder_sizes",
    "messages",
    "method_costs",
    "prefill_bytes",
    "recommend_for_bytes",
    "recommend_for_traffic",
    "schemes",
    "source_bytes",
]
