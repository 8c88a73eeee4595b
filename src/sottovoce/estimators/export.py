"""Fitted models as others know them: plain estimators of scikit-learn, ONNX graphs."""

from __future__ import annotations

import importlib
from copy import copy
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.errors import InputError
from sottovoce.files import write_data

if TYPE_CHECKING:
    from sottovoce.estimators.base import PrivateLinearModel


def to_sklearn(model: PrivateLinearModel) -> Any:
    """A plain estimator of scikit-learn with the coefficients of a fitted one."""
    module, name = model._plain.rsplit(".", 1)
    made = getattr(importlib.import_module(module), name)()  # which takes a while to import
    fitted = ("coef_", "intercept_", "classes_", "n_features_in_", "feature_names_in_")
    vars(made).update({name: copy(vars(model)[name]) for name in fitted if name in vars(model)})
    made.n_iter_ = np.array([model.n_iter_])
    return made


def to_onnx(model: PrivateLinearModel, path: str | PathLike[str] | None) -> bytes:
    """The same as an ONNX graph, and written to `path`."""
    plain = model.to_sklearn()
    try:
        from skl2onnx import to_onnx as converted
    except ImportError:
        raise InputError("to_onnx needs skl2onnx; install the extra, sottovoce[onnx].") from None
    vars(plain).pop("feature_names_in_", None)  # a graph knows columns by their places
    options = {id(plain): {"zipmap": False}} if hasattr(plain, "predict_proba") else None
    graph = converted(plain, np.zeros((1, model.n_features_in_), np.float32), options=options)
    made: bytes = graph.SerializeToString()
    if path is not None:
        write_data(Path(path), made, "path")
    return made
