"""scikit-learn estimators around the Trainer: `Classifier` and `Regressor`.

```python
from headrace.sklearn import Classifier

model = make_pipeline(StandardScaler(), Classifier(hidden=(64, 64), epochs=30, random_state=0))
GridSearchCV(model, {"classifier__lr": [1e-3, 1e-2]}, cv=5).fit(X, y)
```

They pass `sklearn.utils.estimator_checks.check_estimator` but for `EXPECTED_FAILED_CHECKS`, which says why.

It calls `store`, `loss`, `watch` and `train`.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'headrace.sklearn needs scikit-learn, which is not installed: pip install "headrace[sklearn]"',
        name=missing.name,
    ) from missing

from .base import EXPECTED_FAILED_CHECKS
from .estimators import Classifier, Regressor

__all__ = ["EXPECTED_FAILED_CHECKS", "Classifier", "Regressor"]
