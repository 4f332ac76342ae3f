"""Languages of texts, detected by their scripts and their most frequent words."""

from collections import Counter
from collections.abc import Iterable

ENGLISH, NONE = "english", "none"
# Frequent words of the languages that share a script with others.
FREQUENT = {
    ENGLISH: "the of and to in a is that for it as was with on be by are this you i or not your how what can do my",
    "arabic": "في من على إلى أن هذا ما هل لا التي عن مع كيف هو الذي أو كان",
    "basque": "eta da ez bat du ere dira izan zer nola dute edo baina egin",
    "bulgarian": "и на да не се за в е от с че как по са ще към или",
    "catalan": "de la que i el en a les per un una amb no és els del com es al què",
    "czech": "a v na se je to že s z do o i jak pro si ve by jsou za co",
    "danish": "og at det i en er på til af for med den der ikke jeg har kan de et hvordan du",
    "dutch": "de het een van en in is dat op te zijn voor met niet ik je die aan er als kan wat hoe u",
    "esperanto": "la de kaj en estas ne mi al por ĉu vi kun tiu kiel",
    "estonian": "ja on ei et see kui mis ka oma või kas kuidas aga seda oli",
    "finnish": "ja on ei se että en voi ole mutta tai jos kun miten mitä oli hän ovat kuin myös",
    "french": "le la les de des et en un une du est que pour dans je vous à il sur pas qui au ce avec",
    "german": "der die und in den das ist von zu mit ich sie nicht für auf ein eine dem wie wir es im kann des werden",
    "hindi": "के में की है और से का को हैं पर ने यह क्या कि हो कैसे नहीं",
    "hungarian": "a az és hogy nem is egy van ha de meg mit kell el ez már csak hogyan vagy",
    "indonesian": "yang dan di itu dengan untuk tidak ini dari dalam akan pada saya apa bagaimana adalah ke bisa anda",
    "irish": "an na agus ar is i a go ní sé le do",
    "italian": "di che è e il la un per in una non del si con le sono i della da come gli al mi",
    "lithuanian": "ir yra kad į su iš kaip ar ne tai bet už apie nuo po jis",
    "marathi": "आहे आणि च्या या ते मध्ये हे कसे नाही काय",
    "nepali": "र छ को मा हो यो पनि लाई भने गर्न तथा",
    "norwegian": "og å det i en er på til av for med den som ikke jeg har kan de et hvordan du",
    "persian": "و در به از که این را با است می برای آن یک های چگونه",
    "polish": "i w na nie się z do jest to że jak o czy po od za dla są co może",
    "portuguese": "de que o a e do da em um para com não uma os no se na por as dos é como você ao",
    "romanian": "de și în a la cu nu pe este un o că pentru care să din se mai sunt ce",
    "russian": "и в не на что я с как то это по к для из у за от же при можно",
    "serbian": "je da se na za ne su od sa što kako li ili će u i је да се на за не су од са што како ли или ће у и",
    "slovak": "a v na sa je to že s z do o ako pre si vo by sú za čo",
    "spanish": "de la que el en y los del las un por con una para es no se lo como su al más qué",
    "swedish": "och att det i en på är som av för med den till inte om ett jag har kan du de",
    "turkish": "ve bir bu için ile mi de da ne nasıl çok olarak var daha gibi mı ben olan değil",
    "ukrainian": "і в не на що я з як це та до у за від для по чи є",
    "urdu": "کے میں کی ہے اور سے کا کو ہیں پر نے یہ کیا کہ",
    "vietnamese": "là của và có không được cho trong một những các với tôi để này người khi như làm thế",
}
# Scripts of the other languages, and the language of a script if there are too few frequent words.
SCRIPTS = {
    "japanese": r"\p{Hira}\p{Kana}",  # before Chinese, as Japanese texts have Han characters too
    "chinese": r"\p{Han}\p{Bopo}",
    "korean": r"\p{Hang}",
    "thai": r"\p{Thai}",
    "lao": r"\p{Laoo}",
    "khmer": r"\p{Khmr}",
    "burmese": r"\p{Mymr}",
    "greek": r"\p{Grek}",
    "hebrew": r"\p{Hebr}",
    "armenian": r"\p{Armn}",
    "tamil": r"\p{Taml}",
    "russian": r"\p{Cyrl}",
    "arabic": r"\p{Arab}",
    "hindi": r"\p{Deva}",
}
# Languages without spaces between words, and Korean, whose words end in particles.
BIGRAMS = ("japanese", "chinese", "korean", "thai", "lao", "khmer", "burmese")
LANGUAGES = (*sorted({*FREQUENT, *SCRIPTS}), NONE)
# Values of `data.language`.
CHOICES = ("", *LANGUAGES)
# Texts and characters of each that `detect` reads.
TEXTS, CHARACTERS = 512, 256


def is_latin(language: str) -> bool:
    """Returns true for a language of the Latin script."""
    return any("a" <= character <= "z" for character in FREQUENT.get(language, ""))


def detect(texts: Iterable[str]) -> str:
    """Returns the language of most of the texts, one of `LANGUAGES` without `none`; English if it can't be told.

    Some hundred texts are read, evenly spaced, and the beginning of each.
    """
    import regex

    sample = " ".join(_spread(text[:CHARACTERS] for text in texts)).lower()
    letters, fallback = max(len(regex.findall(r"\p{L}", sample)), 1), ENGLISH
    for language, script in SCRIPTS.items():
        if not sample.isascii() and len(regex.findall(f"[{script}]", sample)) >= 0.2 * letters:
            if language not in FREQUENT:
                return language
            fallback = language
    words = Counter(regex.findall(r"[\w\p{M}]+", sample))
    share = {language: _share(words, frequent.split()) for language, frequent in FREQUENT.items()}
    best = max(share, key=share.__getitem__)
    return best if share[best] > max(0.05, 1.2 * share[fallback]) else fallback


def _share(words: Counter, frequent: list[str]) -> float:
    """Returns the share of words that are frequent ones; 0 if fewer than three different ones occur.

    A Latin word of one letter has weight 0.1 instead of 1, because in texts with code most of them are variables. The
    weights of the different frequent words that occur have to sum to at least 2.
    """
    weights = {word: 0.1 if len(word) == 1 and word.isascii() else 1 for word in frequent if word in words}
    enough = len(weights) >= 3 and sum(weights.values()) >= 2
    return sum(words[word] * weight for word, weight in weights.items()) / words.total() if enough else 0.0


def _spread(texts: Iterable[str]) -> list[str]:
    """Returns up to `TEXTS` of the texts, evenly spaced."""
    spaced, step = list[str](), 1
    for number, text in enumerate(texts):
        if number % step == 0:
            spaced.append(text)
            if len(spaced) > TEXTS:
                spaced, step = spaced[::3], 3 * step  # an even step would miss every other text
    return spaced
