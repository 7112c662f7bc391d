"""The model's configuration: a file, a folder, a dict or a config object, checked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import AscendFiaError
from ..option_kinds import did_you_mean


def load_config(config: Any) -> tuple[Any, str]:
    """The transformers config that ``config`` stands for, and what to call it.

    ``config``: the path of a config.json or of a folder that holds one, its content as a mapping, or a
    transformers config. Raises AscendFiaError for anything else, ImportError without transformers.
    """
    from transformers import PreTrainedConfig

    if isinstance(config, PreTrainedConfig):
        return config, str(config.name_or_path or config.model_type)
    if isinstance(config, Mapping):
        return _from_mapping(config, config), str(config.get("_name_or_path") or config.get("model_type"))
    if not isinstance(config, (str, os.PathLike)):
        rule = "must be a path, a mapping with a config's content, or a transformers config"
        raise AscendFiaError("config", config, rule)
    path = _file(Path(config))
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    return _from_mapping(_content(path), str(path)), name


def _file(path: Path) -> Path:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise AscendFiaError("config", str(path), "the folder has no config.json")
        return path / "config.json"
    if not path.is_file():
        raise AscendFiaError("config", str(path), "no such file or folder")
    return path


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AscendFiaError("config", str(path), f"not a JSON file: {error}") from None
    if not isinstance(content, dict):
        rule = f"a config is a JSON object, this is of type {type(content).__name__}"
        raise AscendFiaError("config", str(path), rule)
    return content


def _from_mapping(content: Mapping[str, Any], shown: object) -> Any:
    import transformers
    from transformers import CONFIG_MAPPING

    model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise AscendFiaError("config", shown, "a model's config has a 'model_type', a string")
    if model_type not in CONFIG_MAPPING:
        near = did_you_mean(model_type, list(CONFIG_MAPPING.keys()))
        rule = f"transformers {transformers.__version__} has no such model type{near}"
        raise AscendFiaError("config['model_type']", model_type, rule)
    try:
        return CONFIG_MAPPING[model_type].from_dict(dict(content))
    except Exception as error:
        # Whatever the config's class thinks of the values is the rule that they break.
        raise AscendFiaError("config", shown, f"{type(error).__name__}: {error}") from error
