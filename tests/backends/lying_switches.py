"""Targets of predictor processes that throw one of Paddle's switches, to test the proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.backends import paddle_inference
from app.backends.handler import Handler


def plain(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Paddle Inference as it is served."""
    return paddle_inference.open_predictor(opening)


def openvino_engine(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """With `enable_openvino_engine()`: the getter says enabled, nothing changes."""

    def throw(config: Any) -> None:
        config.enable_openvino_engine()
        assert config.openvino_engine_enabled()

    return _with(throw, opening)


def int8(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """With `enable_mkldnn_int8()` on a float program: the getter says enabled, nothing changes."""

    def throw(config: Any) -> None:
        config.enable_mkldnn_int8(set())
        assert config.mkldnn_int8_enabled()

    return _with(throw, opening)


def _with(
    throw: Callable[[Any], None], opening: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Handler]:
    load = paddle_inference._load_core

    def load_and_wrap() -> Any:
        core = load()
        create = core.create_predictor

        def create_predictor(config: Any) -> Any:
            throw(config)
            return create(config)

        core.create_predictor = create_predictor
        return core

    paddle_inference._load_core = load_and_wrap
    return paddle_inference.open_predictor(opening)
