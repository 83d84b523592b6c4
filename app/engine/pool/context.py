"""What the instance groups of one registry have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.contracts.ports import AgreementOf, Clock, EngineObserver, PredictorFactory
from app.engine.pool.on_demand import OnDemand
from app.engine.pool.yielding import Yielding


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What every group of a registry shares."""

    open_predictor: PredictorFactory
    observer: EngineObserver
    clock: Clock
    max_resident_bytes: int
    agreement_of: AgreementOf = lambda _info: None
    yielding: Yielding = field(default_factory=Yielding)
    on_demand: OnDemand = field(default_factory=OnDemand)
