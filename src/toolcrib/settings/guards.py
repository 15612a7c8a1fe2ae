"""The table `guards` of our section: when a loop on the surface `dynamic` is told that it goes round in circles."""

from toolcrib.discovery.guards import GuardOptions
from toolcrib.settings.section import Section


def read(guards: Section) -> GuardOptions:
    """The table's values over the defaults; `false` switches a guard off."""
    default = GuardOptions()
    options = GuardOptions(
        repeats=_times(guards, "repeats", default.repeats),
        misses=_times(guards, "misses", default.misses),
        lookups=_times(guards, "lookups", default.lookups),
        refuse=guards.flag("refuse") is True,
    )
    guards.refuse_unknown()
    return options


def _times(guards: Section, key: str, default: int | None) -> int | None:
    entry = guards.spelling(key)
    if entry is None:
        return default
    value = guards.table[entry]
    if value is False:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    guards.wrong(entry, "must be a whole number of at least 1, or false", value)
    return default
