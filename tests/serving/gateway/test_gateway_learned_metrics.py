"""What the metrics say of pools that learn, from the start on, each under its own name."""

from __future__ import annotations

from headway.decide.journal import ServingRecord
from headway.serving.gateway.config import Config
from headway.serving.gateway.gateway import Gateway


def test_each_pool_that_learns_has_its_metrics_from_the_start() -> None:
    pools = [
        {"name": name, "policy": policy, "replicas": ["http://127.0.0.1:9"]}
        for name, policy in (("chat", "learned"), ("code", "learned"), ("rest", "random"))
    ]
    gateway = Gateway(Config.model_validate({"pools": pools}), {})
    value = gateway.admission.telemetry.registry.get_sample_value
    for pool in ("chat", "code"):
        assert value("headway_gateway_learned_trusted", {"group": pool}) == 1
        assert value("headway_gateway_model_version", {"group": pool}) == 0
        assert value("headway_gateway_model_training_samples", {"group": pool}) == 0
    assert value("headway_gateway_learned_trusted", {"group": "rest"}) is None
    chat = gateway.admission.pools[0]
    record = ServingRecord(t_s=0.0, event="fall-back", what="it is worse")
    chat._journal.write(record)
    assert value("headway_gateway_learned_trusted", {"group": "chat"}) == 0
    assert value("headway_gateway_learned_trusted", {"group": "code"}) == 1
