"""Files of version 1 in the words of this release: records, and the configs and tensor names of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from resolvent.fields import as_list, as_mapping
from resolvent.model import version1 as model_version1

_STATE = {"skipped": "skipped_steps", "in_a_row": "skipped_in_a_row", "usual_norm": "average_norm"}


def record(values: Mapping[str, object]) -> dict[str, object]:
    """The values of a record."""
    new = dict(values)
    new["config"] = config(as_mapping(new.get("config"), "config"))
    new["environment"] = _environment(as_mapping(new.pop("surroundings", None), "surroundings"))
    new["evaluation"] = evaluation(as_mapping(new.get("evaluation"), "evaluation"))
    if "lengths" in new:
        new["lengths"] = [evaluation(as_mapping(each, "a length")) for each in as_list(new["lengths"], "lengths")]
    return new


def config(values: Mapping[str, object]) -> dict[str, object]:
    """The config of a run. Values of recall were drawn with replacement then."""
    task = as_mapping(values.get("task"), "task")
    drawn = {"repeats": True} if task.get("name") in ("recall", "multihop") else {}
    return {**values, "model": model_version1.config(as_mapping(values.get("model"), "model")), "task": drawn | task}


def evaluation(values: Mapping[str, object]) -> dict[str, object]:
    return {"by_position" if name == "by_place" else name: value for name, value in values.items()}


def state(values: Mapping[str, object]) -> dict[str, object]:
    return {_STATE.get(name, name): value for name, value in values.items()}


def _environment(values: dict[str, object]) -> dict[str, object]:
    rest = {name: values.pop(name, None) for name in ("python", "machine", "commit")}
    return {**rest, "packages": values}
