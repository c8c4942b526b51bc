"""Where a run stands: what a checkpoint holds beside tensors. No torch here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from resolvent.errors import SettingError
from resolvent.fields import Amount, Count, as_integers, as_mapping, check_names, check_types, field_names
from resolvent.train.config import RunConfig
from resolvent.train.record import CurvePoint, curve_from

CHECKPOINT, SHARDS = "checkpoint.safetensors", "checkpoints"  # in the folder of a run: a file, or a folder of shards
_SCALE_PATIENCE = 2000


@final
@dataclass
class TrainState:
    """Counted over all lives of a run.

    average_norm  a running average of the gradient's norm
    loss_scale    what the loss is multiplied by in float16; `scale_age`: steps since it changed
    extended_at   steps after which the run was given more of them than it was begun with
    """

    step: Count = 0
    seconds: Amount = 0.0
    tokens: Count = 0
    skipped_steps: Count = 0
    skipped_in_a_row: Count = 0
    average_norm: Amount = 0.0
    curve: tuple[CurvePoint, ...] = ()
    solved_at: Count | None = None
    loss_scale: Amount = 65536.0
    scale_age: Count = 0
    extended_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)

    def adapt_scale(self, overflowed: bool) -> None:
        """Halve the scale after an overflow; double it after so many steps without one."""
        self.scale_age += 1
        if overflowed:
            self.loss_scale, self.scale_age = max(self.loss_scale / 2, 1.0), 0
        elif self.scale_age == _SCALE_PATIENCE:
            self.loss_scale, self.scale_age = self.loss_scale * 2, 0

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> TrainState:
        check_names(values, field_names(cls), "the state of a run", optional=())
        extended = tuple(as_integers(values["extended_at"], "extended_at"))
        make: Callable[..., TrainState] = cls  # which checks its values
        return make(**{**values, "curve": curve_from(values["curve"]), "extended_at": extended})


@final
@dataclass(frozen=True)
class SavedRun:
    """What a checkpoint says of its tensors."""

    config: RunConfig
    state: TrainState

    def __post_init__(self) -> None:
        state, steps = self.state, self.config.train.steps
        points = [point.step for point in state.curve]
        for name, value, most in (
            ("step", state.step, steps),
            ("skipped_steps", state.skipped_steps, state.step),
            ("skipped_in_a_row", state.skipped_in_a_row, state.skipped_steps),
            ("scale_age", state.scale_age, state.step),
            ("solved_at", state.solved_at or 0, state.step),
            ("the last step of the curve", max(points, default=0), state.step),
            ("extended_at", max(state.extended_at, default=0), state.step),
        ):
            if value > most:
                raise SettingError(
                    f"expected {name} to be at most {most:,} in a run of {steps:,} steps, got {value:,}."
                )

    def to_dict(self) -> dict[str, object]:
        return {"config": self.config.to_dict(), "state": dataclasses.asdict(self.state)}

    @classmethod
    def from_dict(cls, content: object) -> SavedRun:
        values = as_mapping(content, "a checkpoint's state")
        check_names(values, ("config", "state"), "a checkpoint", optional=())
        config, state = (as_mapping(values[name], name) for name in ("config", "state"))
        return cls(RunConfig.from_dict(config), TrainState.from_dict(state))
