"""Losses of a linear model: ``get("logistic")``, ``get("huber", threshold=0.5)``.

``register`` makes a loss of your own known by its name, to the estimators too: `PrivateRidge(loss=...)` takes those of
the kind "regression" and `PrivateLinearSVC(loss=...)` those of the kind "classification".
"""

from sottovoce.losses.base import SEVERAL as SEVERAL
from sottovoce.losses.base import Kind as Kind
from sottovoce.losses.base import KnownLabels as KnownLabels
from sottovoce.losses.base import Loss as Loss
from sottovoce.losses.base import check_units as check_units
from sottovoce.losses.base import coded as coded
from sottovoce.losses.base import get as get
from sottovoce.losses.base import known as known
from sottovoce.losses.base import names as names
from sottovoce.losses.base import register as register
from sottovoce.losses.base import takes as takes
from sottovoce.losses.counts import Count as Count
from sottovoce.losses.counts import LogMeanLoss as LogMeanLoss
from sottovoce.losses.counts import Positive as Positive
from sottovoce.losses.ordinal import Ordinal as Ordinal
from sottovoce.losses.several import ClassesLoss as ClassesLoss
from sottovoce.losses.several import OneVsRest as OneVsRest
from sottovoce.losses.several import Softmax as Softmax
from sottovoce.losses.several import Weighted as Weighted
from sottovoce.losses.several import weighted as weighted
from sottovoce.losses.single import Hinge as Hinge
from sottovoce.losses.single import Huber as Huber
from sottovoce.losses.single import Logistic as Logistic
from sottovoce.losses.single import Sigmoid as Sigmoid
from sottovoce.losses.single import SmoothedHinge as SmoothedHinge
from sottovoce.losses.single import Squared as Squared
from sottovoce.losses.times import Hazard as Hazard
