"""`whitened`: second moments, gradients of whitened rows, a rescale."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.whitened.classes import ExactClasses, ExactWhitened, PrivateClasses
from sottovoce.algorithms.whitened.columns import ColumnsCounts, ColumnsPeople, ColumnsWhitened
from sottovoce.algorithms.whitened.counts import PrivateCounts
from sottovoce.algorithms.whitened.ordinal import ExactOrdinal, PrivateOrdinal
from sottovoce.algorithms.whitened.people import PeopleClasses, PeopleWhitened
from sottovoce.algorithms.whitened.private import PrivateWhitened
from sottovoce.algorithms.whitened.times import PrivateHazards

FORMS: tuple[Algorithm, ...] = (
    PrivateWhitened(),
    ExactWhitened(),
    PrivateClasses(),
    ExactClasses(),
    PrivateOrdinal(),
    ExactOrdinal(),
    PrivateCounts(),
    PrivateHazards(),
    ColumnsWhitened(),
    ColumnsCounts(),
    ColumnsPeople(),
    PeopleWhitened(),
    PeopleClasses(),
)
