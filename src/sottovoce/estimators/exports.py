"""What a fitted model is given away as: a file, an estimator of scikit-learn, a graph of ONNX, its coefficients."""

from __future__ import annotations

import importlib
from copy import copy
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import Pipeline

from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.files import write_data, write_text


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The features that a schema makes of a table, curves included, as a step of a pipeline; nothing is learned."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def fit(self, _table: Any, _labels: Any = None) -> Self:
        return self

    def transform(self, table: Any) -> Any:
        return self.schema.encode(table)

    def get_feature_names_out(self, _names: Any = None) -> NDArray[Any]:
        return np.array(self.schema.feature_names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True


class WithExports:
    """Models that can be written, and used where this library is not."""

    def save(self: Any, path: str | PathLike[str]) -> None:
        """Write the fitted model as JSON, for `sv.load_model` and for all commands; a file that is there is replaced.

        It has what is public about the fit, and nothing else of the data; no ledger and no resources.
        """
        from sottovoce.estimators.model_file import to_json  # which knows all estimators

        write_text(Path(path), to_json(self), "path")

    def to_sklearn(self: Any, *, encoded: bool = False) -> Any:
        """A plain estimator of scikit-learn with these coefficients, which cuts no rows.

        Of a model with a schema a pipeline that takes tables, as the model does: the schema's features, then the plain
        estimator; `encoded=True` gives the latter alone, for `schema.encode(table)` and where this library is not.
        """
        self._check_shared()
        if self._schema is not None and not encoded:
            plain = self.to_sklearn(encoded=True)
            vars(plain).pop("feature_names_in_", None)  # encoded rows have no names
            return Pipeline([("features", TableEncoder(self._columns)), ("model", plain)])
        module, name = self._plain.rsplit(".", 1)
        model = getattr(importlib.import_module(module), name)()  # which takes a while to import
        fitted = ("coef_", "intercept_", "classes_", "n_features_in_", "feature_names_in_")
        vars(model).update({name: copy(vars(self)[name]) for name in fitted if name in vars(self)})
        model.n_iter_ = np.array([self.n_iter_])
        return model

    def to_onnx(self: Any, path: str | PathLike[str] | None = None) -> bytes:
        """The model as an ONNX graph, and written to `path`; needs the extra `onnx`.

        It is that of `to_sklearn(encoded=True)`: the input `X` has the numeric features in their order, as float32 (of
        a table, `schema.encode(table)`), and rows are not cut. Classifiers give labels and, where there are some,
        probabilities.
        """
        model = self.to_sklearn(encoded=True)
        try:
            from skl2onnx import to_onnx
        except ImportError:
            raise InputError("to_onnx needs skl2onnx; install the extra, sottovoce[onnx].") from None
        vars(model).pop("feature_names_in_", None)  # a graph knows columns by their places
        options = {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
        graph = to_onnx(model, np.zeros((1, self.n_features_in_), np.float32), options=options)
        data: bytes = graph.SerializeToString()
        if path is not None:
            write_data(Path(path), data, "path")
        return data

    @property
    def sparse_coef_(self: Any) -> Any:
        """`coef_` as a CSR matrix of one row, of several classes one for each."""
        self._check_shared()
        return sp.csr_matrix(np.atleast_2d(self.coef_))

    @property
    def selected_features_(self: Any) -> dict[str, float]:
        """The coefficients that are not zero by the names of their features, the largest first.

        Without names, or where two features share one, they are called x0, x1, ... Of several classes the largest
        coefficient of each feature is taken.
        """
        self._check_shared()
        rows = np.atleast_2d(self.coef_)
        coef = rows[np.abs(rows).argmax(axis=0), np.arange(rows.shape[1])]
        names = self._feature_names
        if len(set(names)) < len(coef):
            names = tuple(f"x{j}" for j in range(len(coef)))
        order = np.argsort(-np.abs(coef), kind="stable")
        return {names[j]: float(coef[j]) for j in order if coef[j] != 0.0}
