"""Languages of texts, detected by py3langid."""

import functools
from collections.abc import Iterable
from typing import Any

ENGLISH, NONE = "english", "none"
# ISO 639 codes of the languages in the Latin script, and of others.
LATIN = {
    ENGLISH: "en", "basque": "eu", "catalan": "ca", "czech": "cs", "danish": "da", "dutch": "nl", "esperanto": "eo",
    "estonian": "et", "finnish": "fi", "french": "fr", "german": "de", "hungarian": "hu", "indonesian": "id",
    "irish": "ga", "italian": "it", "lithuanian": "lt", "norwegian": "no", "polish": "pl", "portuguese": "pt",
    "romanian": "ro", "serbian": "sr", "slovak": "sk", "spanish": "es", "swedish": "sv", "turkish": "tr",
    "vietnamese": "vi",
}  # fmt: skip
OTHERS = {
    "arabic": "ar", "armenian": "hy", "bulgarian": "bg", "burmese": "my", "chinese": "zh", "greek": "el",
    "hebrew": "he", "hindi": "hi", "japanese": "ja", "khmer": "km", "korean": "ko", "lao": "lo", "marathi": "mr",
    "nepali": "ne", "persian": "fa", "russian": "ru", "tamil": "ta", "thai": "th", "ukrainian": "uk", "urdu": "ur",
}  # fmt: skip
# Languages without spaces between words, and Korean, whose words end in particles.
BIGRAMS = ("japanese", "chinese", "korean", "thai", "lao", "khmer", "burmese")
LANGUAGES = (*sorted({*LATIN, *OTHERS}), NONE)
# Texts and characters of each that `detect` reads, and the least probability of another language than English.
TEXTS, CHARACTERS, SURE = 512, 256, 0.5


def is_latin(language: str) -> bool:
    """Returns true for a language of the Latin script."""
    return language in LATIN


def detect(texts: Iterable[str]) -> str:
    """Returns the language of most of the texts, one of `LANGUAGES` without `none`; English if it can't be told.

    Some hundred texts are read, evenly spaced, and the beginning of each.
    """
    identifier, names = _identifier()
    code, probability = identifier.classify(" ".join(_spread(text[:CHARACTERS] for text in texts)))
    return names[code] if probability >= SURE else ENGLISH


@functools.cache
def _identifier() -> tuple[Any, dict[str, str]]:
    """Returns py3langid's identifier for these languages, which takes half a second, and their names by its codes."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    names = {code: name for name, code in {**LATIN, **OTHERS}.items()} | {"nn": "norwegian"}
    identifier.set_languages([code for code in identifier.nb_classes if code in names])
    return identifier, names


def _spread(texts: Iterable[str]) -> list[str]:
    """Returns up to `TEXTS` of the texts, evenly spaced."""
    spaced, step = list[str](), 1
    for number, text in enumerate(texts):
        if number % step == 0:
            spaced.append(text)
            if len(spaced) > TEXTS:
                spaced, step = spaced[::3], 3 * step  # an even step would miss every other text
    return spaced
