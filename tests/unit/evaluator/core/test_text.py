"""A language is the same one under its name and under its code."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from evaluator.core.text import code_of, name_of, normalise


def test_names_and_codes_mean_the_same_language():
    assert (code_of("Tamil"), name_of("or")) == ("ta", "odia")
    assert code_of("swahili") == code_of(" Swahili") == code_of("sw") == code_of("SW") == "sw"
    assert name_of("sw") == name_of("Swahili") == "swahili"
    assert code_of("be-tarask") == name_of("be-tarask") == "be-tarask"


@given(st.text())
def test_punctuation_is_what_unicode_says(text):
    lowered = unicodedata.normalize("NFC", text).lower()
    kept = "".join(char for char in lowered if not unicodedata.category(char).startswith("P"))
    assert normalise(text) == " ".join(kept.split())
