"""The people of the population: who they are, and what they are like, from a seed.

Every address is under example.com or example.org.
"""

from itertools import product
from random import Random
from typing import Literal, TypeVar
from unicodedata import normalize

import msgspec

from relay.sandbox.model import Person

Acquaintance = Literal["known", "tells", "anonymous"]
"""Known by a link with an address; names itself in a form some day; or never says who it is."""

_GIVEN = (
    *("Ada", "Bongani", "Chloé", "Daniel", "Esra", "Fatima", "Goran", "Hiroshi"),
    *("Ingrid", "Jürgen", "Kofi", "Leïla", "María José", "Noor", "Olu", "Priya"),
    *("Quentin", "Rosa", "Siobhán", "Tomás", "Uma", "Viktor", "Wanjiru", "Zoë"),
)
_FAMILY = (
    *("Moreau", "Dube", "Lefèvre", "O'Connor", "Özdemir", "Al-Sayed", "Kovač", "Tanaka"),
    *("Sørensen", "Groß", "Mensah", "Haddad", "Núñez", "van der Berg", "Adeyemi", "Sharma"),
    *("Bernard", "Silva", "Byrne", "Horák", "Nair", "Petrov", "Njoroge", "Lindqvist"),
)
_DOMAINS = ("example.com", "example.org", "studio.example.com")
_COUNTRIES = (("DE", 30), ("US", 25), ("GB", 12), ("FR", 12), ("IN", 9), ("ZA", 6), ("JP", 6))
_DEVICES = (("desktop", 60), ("mobile", 32), ("tablet", 8))
_ACQUAINTANCES: tuple[tuple[Acquaintance, int], ...] = (
    ("known", 45),
    ("tells", 30),
    ("anonymous", 25),
)
_T = TypeVar("_T")

_PAUSE_H = (8.0, 48.0)
"""Mean hours between the visits of a person, from the keenest to the least keen."""


class Character(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is like as a viewer."""

    acquaintance: Acquaintance
    address: str
    """The address for forms and links."""
    persistence: float
    """How probable it is that the person goes on to the end of a video, 0 to 1."""
    pause_s: float
    """Mean time between two visits."""


def person(seed: int, index: int, *, person_id: str) -> tuple[Person, Character]:
    """Return the person of an index, the same for the same seed."""
    random = Random(f"{seed} person {index}")
    name, mailbox = _name(seed, index)
    acquaintance = _weighted(random, _ACQUAINTANCES)
    address = f"{mailbox}@{random.choice(_DOMAINS)}"
    character = Character(
        acquaintance=acquaintance,
        address=address,
        persistence=random.uniform(0.15, 0.95),
        pause_s=random.uniform(*_PAUSE_H) * 3600,
    )
    return Person(
        id=person_id,
        name=name,
        email=address if acquaintance == "known" else None,
        country=_weighted(random, _COUNTRIES),
        device=_weighted(random, _DEVICES),
    ), character


def _name(seed: int, index: int) -> tuple[str, str]:
    """Return a name and a mailbox; mailboxes are numbered once every name has been taken."""
    names = list(product(_GIVEN, _FAMILY))
    Random(f"{seed} names").shuffle(names)
    given, family = names[index % len(names)]
    again = index // len(names)
    return f"{given} {family}", f"{_plain(given)}.{_plain(family)}{again + 1 if again else ''}"


def _plain(name: str) -> str:
    letters = normalize("NFKD", name.lower().replace("ß", "ss").replace("ø", "o"))
    return "".join(letter for letter in letters if letter.isascii() and letter.isalpha())


def _weighted(random: Random, choices: tuple[tuple[_T, int], ...]) -> _T:
    values = [value for value, _ in choices]
    return random.choices(values, [weight for _, weight in choices])[0]
